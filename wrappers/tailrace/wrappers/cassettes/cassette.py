"""The recording of one response, and its file format.

The file is JSON. Each chunk of the response body has its own line, so that people can compare and edit the file.
"""

import base64
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from tailrace.wrappers.errors import ConfigurationError, UpstreamError, UpstreamFault
from tailrace.wrappers.messages import History
from tailrace.wrappers.request_options import RequestOptions

MAX_BYTES = 64 * 1024 * 1024
"""Maximum size of a file, in bytes."""

_NAME = re.compile(r"\d{4,9}-[0-9a-f]{12}\.json")
_DIGEST_CHARACTERS = 12  # in the name of a file
# Fields that change if the same conversation is repeated: provider ids, times, signatures.
_CHANGING = frozenset({"metadata", "signature", "synthetic_id"})


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BodyPart(_Model):
    """One chunk of a response body: the bytes of one network read.

    Attributes:
        at: Seconds after the request was sent.
        text: The bytes as text; None if they are not valid UTF-8.
        base64: The bytes in base64 if they are not valid UTF-8; otherwise None.
    """

    at: float
    text: str | None = None
    base64: str | None = None

    @classmethod
    def of(cls, at: float, data: bytes) -> "BodyPart":
        """Create a body part from bytes that arrived ``at`` seconds after the request."""
        try:
            return cls(at=round(at, 4), text=data.decode())
        except UnicodeDecodeError:
            return cls(at=round(at, 4), base64=base64.b64encode(data).decode("ascii"))

    @model_validator(mode="after")
    def _one_content(self) -> "BodyPart":
        if (self.text is None) == (self.base64 is None):
            raise ValueError("a piece needs exactly one of text and base64")
        return self

    @property
    def data(self) -> bytes:
        """The bytes."""
        return base64.b64decode(self.base64) if self.base64 is not None else (self.text or "").encode()


class Failure(_Model):
    """The error that ended a response, or that occurred before a response. See `UpstreamError` for its fields."""

    fault: UpstreamFault
    message: str
    status: int | None = None
    code: str | None = None
    retry_after: float | None = None

    @classmethod
    def of(cls, error: UpstreamError) -> "Failure":
        """Create a failure from an error."""
        return cls(
            fault=error.fault,
            message=error.message,
            status=error.status,
            code=error.code,
            retry_after=error.retry_after,
        )

    def error(self, provider: str) -> UpstreamError:
        """Create the error of this failure."""
        return UpstreamError(
            self.message,
            fault=self.fault,
            provider=provider,
            status=self.status,
            code=self.code,
            retry_after=self.retry_after,
        )


class RecordedRequest(_Model):
    """A request in the common format.

    Attributes:
        digest: The digest of the request (`request_digest`). The recording is used for all requests with this digest.
        history: The conversation, as information for people and error messages.
        options: The options that differ from the defaults, as information for people.
    """

    digest: str
    history: dict[str, Any]
    options: dict[str, Any] = {}


class Cassette(_Model):
    """The recording of one response.

    Attributes:
        tailrace_cassette: The version of the file format.
        format: The wire format of the body, a key of `tailrace.wrappers.providers.FORMATS`.
        recorded: The time at which the request was sent.
        pieces: The chunks of the body.
    """

    tailrace_cassette: Literal[1] = 1
    provider: str
    model: str
    format: str
    recorded: datetime
    request: RecordedRequest
    pieces: tuple[BodyPart, ...] = ()
    failure: Failure | None = None

    def write(self, folder: Path) -> Path:
        """Write the recording to a new file, which only the user can read. The folder is created if necessary.

        Returns:
            The path of the file. Its name begins with a higher number than those of the existing files.

        Raises:
            OSError: The file cannot be written.
        """
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        number = 1 + max((int(path.name.partition("-")[0]) for path in _files(folder)), default=0)
        while True:
            path = folder / f"{number:04}-{self.request.digest[:_DIGEST_CHARACTERS]}.json"
            try:
                file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError:  # another process has created this file
                number += 1
                continue
            with open(file, "w", encoding="utf-8") as target:
                target.write(self._json())
            return path

    def _json(self) -> str:
        fields = self.model_dump(mode="json", exclude_defaults=True, exclude={"pieces"})
        lines = [
            json.dumps(piece.model_dump(mode="json", exclude_none=True), ensure_ascii=False)
            for piece in self.pieces
        ]
        head = json.dumps({"tailrace_cassette": 1, **fields}, ensure_ascii=False, indent=1)
        pieces = ",\n  ".join(lines)
        return f'{head[:-2]},\n "pieces": [\n  {pieces}\n ]\n}}\n' if lines else f"{head}\n"


def load_cassettes(folder: Path) -> list[Cassette]:
    """Read all recordings in a folder, in the order in which they were recorded.

    Raises:
        ConfigurationError: The folder does not exist or has no recordings, or a file is invalid.
    """
    if not folder.is_dir():
        raise ConfigurationError(f"there is no folder {str(folder)!r} of recordings")
    cassettes = [_read(path) for path in sorted(_files(folder), key=lambda path: path.name)]
    if not cassettes:
        raise ConfigurationError(
            f"the folder {str(folder)!r} has no recordings (`tailrace record` makes them)"
        )
    return cassettes


def request_digest(history: History, options: RequestOptions) -> str:
    """Return the SHA-256 digest of the conversation and the options of a request, in hexadecimal.

    The digest does not depend on the model, the metadata of messages, signatures of reasoning, or ids of tool calls.
    """
    fields = history.model_dump(mode="json", exclude_defaults=True)
    ids: dict[str, str] = {}
    fields["conversation"] = [
        [message["role"], *(_stable_part(part, ids) for part in message.get("content", ()))]
        for message in fields.get("conversation", ())
    ]
    request = {"history": fields, "options": options.model_dump(mode="json", exclude_defaults=True)}
    canonical = json.dumps(request, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()


def _stable_part(part: dict[str, Any], ids: dict[str, str]) -> dict[str, Any]:
    """Return a message part without the fields that change if the conversation is repeated. Numbers replace ids of calls."""
    stable = {name: value for name, value in part.items() if name not in _CHANGING}
    if "id" in stable:
        stable["id"] = ids.setdefault(stable["id"], f"call {len(ids) + 1}")
    return stable


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.iterdir() if _NAME.fullmatch(path.name))


def _read(path: Path) -> Cassette:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigurationError(f"{path}: a recording has at most {MAX_BYTES // 1024**2} MiB")
        fields: Mapping[str, Any] = json.loads(path.read_bytes())
        return Cassette.model_validate(fields)
    except (OSError, ValueError) as error:
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise ConfigurationError(f"{path}: {where}: {first['msg']}") from None
        raise ConfigurationError(f"{path}: {error}") from None

"""Removal of credentials and internal addresses from error texts of other systems.

Error texts of a provider, a gateway, the HTTP client or a remote agent may contain the key of the request, a URL with a user name
and password, or the name of an internal host. A `Redactor` removes the credentials of one request, and all texts that look like a
credential or an internal address.
"""

import base64
import json
import re
from collections.abc import Callable, Iterable, Mapping
from html import escape, unescape
from ipaddress import ip_address
from typing import Any, Self, TypeVar, cast
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from tailrace.wrappers.decoding.extra_fields import json_text
from tailrace.wrappers.errors import UpstreamError
from tailrace.wrappers.messages import join_surrogates

J = TypeVar("J")

MAX_MESSAGE = 1000
"""Maximum number of characters of an error message from another system."""

MAX_CODE = 100
"""Maximum number of characters of an error code from another system."""

MAX_DETAILS = 8 * 1024
"""Maximum number of characters, as JSON, of an error object from another system. A larger object is dropped."""

CREDENTIAL = "[redacted]"
ADDRESS = "[internal address]"

_READ_FACTOR = 4  # this multiple of a text's maximum length is processed, because redaction may shorten it
_MIN_SECRET = 6  # minimum number of characters of a secret; shorter values are placeholders ("none", "key")
_MIN_PARTIAL_WORD = 8  # a secret with fewer characters is only removed if it is a complete word
_MIN_ENCODED = (
    12  # a secret with fewer characters is only removed in plain form, and as encoded in JSON, HTML and URLs
)

_SECRET_NAME = re.compile(r"(?i)auth|key|token|secret|password|cookie|credential|signature|\bsig\b")

# A complete URL. The user name and password may contain special characters.
_URL = re.compile(
    r"""(?xi) \b([a-z][a-z0-9+.-]{0,20}://)
        (?: ([^\s/?\#"'<>\\]*) @ )?
        (\[[0-9a-f:.%]+\] | [^\s/?\#:"'<>\\()\[\]{},;@]+)
        ([^\s"'<>\\]*)"""
)
_SCHEME_TOKEN = re.compile(r"(?i)\b(bearer|basic|apikey|api-key)(\s*+:\s++|\s++)[\w.~+/=-]{8,}")
_KEY = re.compile(
    r"""(?x) \b(?:
        (?:sk|pk|rk|gsk|xai|csk|nvapi|pplx|hf|gh[opsu]|github_pat|glpat|tgp)[-_][\w-]{16,}
      | AIza[\w-]{30,} | ya29\.[\w.-]{20,} | (?:AKIA|ASIA)[A-Z0-9]{16}
      | eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?
    )"""
)
_PARAMETER = re.compile(
    r"""(?xi) ([?&;](?:api[-_]?key|key|(?:access[-_])?token|sig|signature|password|secret|x-amz-[\w-]+)=)
        [^&;\s"'<>\\]+"""
)
# A field of a connection string or configuration. The value may have quotes.
_FIELD_NAME = r"[\w-]{0,40}(?:password|passwd|pwd|passphrase|secret|api[-_]?key|access[-_]?key|(?:access|auth)[-_]?token)"
_FIELD = re.compile(
    rf"""(?xi) (?<![\w-]) ({_FIELD_NAME} \s{{0,4}}=\s{{0,4}})
        (?: "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' | \{{[^}}]*\}} | [^\s&;,"'<>\\]+ )"""
)
_JSON_FIELD = re.compile(rf"""(?xi) (["']{_FIELD_NAME}["'] \s{{0,4}}:\s{{0,4}}) (?: "[^"]*"? | '[^']*'? )""")
_PRIVATE_KEY = re.compile(
    # Possessive quantifiers match too much here with Python 3.11.2.
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[^-]*(?:-(?!----END)[^-]*)*(?:-----END [A-Z ]{0,40}PRIVATE KEY-----)?"
)
_CODE_POINT = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4}))")
_INVISIBLE = re.compile(r"[\s\u00ad\u200b-\u200f\u2060\ufeff]+")
# The user name and password in a URL that is cut off at the end of the text.
_CUT_USER = re.compile(r"""(://)[^\s/@:\[]+:(?!\d{1,5}(?:\D|$))[^\s/@'"…]*(?=['"…]*$)""")
_PORT = r"(?::\d{1,5})?"
_IPV4 = re.compile(rf"(?<![\w.])(\d{{1,3}}(?:\.\d{{1,3}}){{3}})(?!\w|\.\d){_PORT}")
_IPV6 = re.compile(
    rf"(?i)(?<![\w:.])(\[?)((?=[0-9a-f.]{{0,15}}:)[0-9a-f:.]{{2,45}})(%\w{{1,16}})?(\]{_PORT})?(?![\w:])"
)
_HOST = re.compile(
    rf"""(?xi) (?<![\w.-]) (?: (?:[a-z0-9_-]{{1,63}}\.){{0,8}}localhost
        | (?:[a-z0-9_-]{{1,63}}\.){{1,8}}(?:local|localdomain|internal|intranet|lan|corp|svc|home\.arpa)
    ) (?![\w-]|\.\w) {_PORT}"""
)


class Redactor:
    """Removes credentials and internal addresses from texts.

    Args:
        secrets: Credentials, without regard to case. They are removed in plain form, and as encoded in JSON, HTML and URLs.
            Secrets with at least twelve characters are also removed in base64 and hexadecimal. If a text contains such a secret
            in another form (with line breaks, or with single escaped characters), the complete text is removed. Secrets with
            fewer than six characters are placeholders, and are not removed.
        hosts: Host names, which are removed like internal addresses.
    """

    def __init__(self, *, secrets: Iterable[str] = (), hosts: Iterable[str] = ()) -> None:
        secrets_to_remove = [secret for secret in secrets if len(secret) >= _MIN_SECRET]
        forms = {form for secret in secrets_to_remove for form in _forms(secret)}
        self._secrets = _alternatives(forms)
        self._forms = {form.lower() for form in forms}
        self._bare = {_decoded(secret) for secret in secrets_to_remove if len(secret) >= _MIN_ENCODED}
        self._hosts = _alternatives({host for host in hosts if host}, words=True, after=_PORT)

    @classmethod
    def of_request(cls, url: str, headers: Mapping[str, str]) -> Self:
        """Create a redactor for the errors of one request: for its host, and the credentials in its URL and headers."""
        secrets = [
            secret
            for name, value in headers.items()
            if _SECRET_NAME.search(name)
            for secret in _credentials(value)
        ]
        try:
            parts = urlsplit(url)
            host, user = parts.hostname or "", parts.netloc.rpartition("@")[0]
        except ValueError:
            return cls(secrets=secrets)
        secrets += [unquote(each) for each in (user.partition(":")[2], user) if each]
        secrets += [value for name, value in parse_qsl(parts.query) if _SECRET_NAME.search(name)]
        return cls(secrets=secrets, hosts=[host])

    def for_log(self, text: str, limit: int = MAX_MESSAGE) -> str:
        """Remove credentials from a text, and shorten it to ``limit``. Addresses are not removed, because operators need them."""
        return _bounded(self._remove_credentials(text[: limit * _READ_FACTOR]), limit)

    def for_callers(self, text: str, limit: int = MAX_MESSAGE) -> str:
        """Remove credentials and internal addresses from a text, and shorten it to ``limit`` characters."""
        text = _URL.sub(_remove_internal, self._remove_credentials(text[: limit * _READ_FACTOR]))
        if self._hosts is not None:
            text = self._hosts.sub(ADDRESS, text)
        text = _IPV4.sub(_remove_ipv4, _IPV6.sub(_remove_ipv6, text))
        return _bounded(_HOST.sub(ADDRESS, text), limit)

    def without_credentials(self, value: J) -> J:
        """Remove credentials from all strings in a JSON value. Addresses are not removed, and no text is shortened."""
        return cast("J", _with_texts(value, self._remove_credentials))

    def _remove_credentials(self, text: str) -> str:
        if self._secrets is not None:
            text = self._remove_truncated(self._secrets.sub(CREDENTIAL, text))
            decoded = _decoded(text)
            if any(secret in decoded for secret in self._bare):
                return CREDENTIAL
        text = _PRIVATE_KEY.sub(CREDENTIAL, text)
        text = _CUT_USER.sub(rf"\1{CREDENTIAL}", _URL.sub(_remove_user, text))
        text = _SCHEME_TOKEN.sub(rf"\1\2{CREDENTIAL}", text)
        text = _KEY.sub(CREDENTIAL, text)
        for field in (_PARAMETER, _FIELD, _JSON_FIELD):
            text = field.sub(rf"\1{CREDENTIAL}", text)
        return join_surrogates(text)

    def redact(self, error: UpstreamError) -> UpstreamError:
        """Redact all texts of an error, and return the same error. The addresses in its ``diagnosis`` are not removed."""
        error.message = self.for_callers(error.message)
        error.args = (error.message,)
        error.diagnosis = self.for_log(error.diagnosis)
        error.code = None if error.code is None else self.for_callers(error.code, MAX_CODE)
        if error.details is not None:
            small = isinstance(error.details, str) or len(json_text(error.details)) <= MAX_DETAILS
            error.details = _with_texts(error.details, self.for_callers) if small else None
        return error

    def _remove_truncated(self, text: str) -> str:
        end = text.rstrip("'\"…")
        lowered = end.lower()
        if len(lowered) != len(end):  # some characters become several characters in lower case
            lowered = end
        for secret in self._forms:
            prefix = secret[: _MIN_SECRET - 1]
            position = lowered.find(prefix, max(0, len(end) - len(secret) + 1))
            while position >= 0:
                if secret.startswith(lowered[position:]):
                    return f"{end[:position]}{CREDENTIAL}{text[len(end) :]}"
                position = lowered.find(prefix, position + 1)
        return text


def _with_texts(value: object, change: Callable[[str], str]) -> object:
    """Apply a function to all strings in a JSON value, including the names of members."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        fields = cast("Mapping[Any, object]", value)
        return {change(str(name)): _with_texts(each, change) for name, each in fields.items()}
    if isinstance(value, list | tuple):
        return [_with_texts(each, change) for each in cast("Iterable[object]", value)]
    return value


def _credentials(header: str) -> list[str]:
    """Return all secret values in a header: the value, the token after the scheme, and the user and password (Basic)."""
    scheme, _, token = header.partition(" ")
    values = [header, token]
    if scheme.lower() == "basic":
        try:
            decoded = base64.b64decode(token, validate=True).decode()
        except ValueError:
            decoded = ""
        values += [decoded, decoded.partition(":")[2]]
    return [each for each in values if each]


def _forms(secret: str) -> set[str]:
    """Return the plain and encoded forms of a secret that an error text may contain."""
    forms = {secret, quote(secret, safe=""), json.dumps(secret)[1:-1], escape(secret)}
    if len(secret) >= _MIN_ENCODED:
        data = secret.encode("utf-8", "replace")
        forms |= {data.hex(), *_base64_cores(data)}
    return forms


def _base64_cores(data: bytes) -> Iterable[str]:
    """Yield the base64 characters that represent these bytes at any position in longer data, in both base64 alphabets.

    Base64 encodes three bytes as four characters, so there are three possible offsets. The first and last characters are omitted,
    because they may also depend on other bytes.
    """
    for offset in range(3):
        encoded = base64.b64encode(bytes(offset) + data).rstrip(b"=").decode("ascii")
        core = encoded[(offset * 8 + 5) // 6 : (offset + len(data)) * 8 // 6]
        yield core
        yield core.replace("+", "-").replace("/", "_")


def _decoded(text: str) -> str:
    """Return a text in lower case, without escape sequences and invisible characters."""
    text = _CODE_POINT.sub(lambda match: chr(int(match[1] or match[2], 16)), unquote(unescape(text)))
    return _INVISIBLE.sub("", text).lower()


def _alternatives(texts: set[str], *, words: bool = False, after: str = "") -> re.Pattern[str] | None:
    if not texts:
        return None
    longest_first = sorted(texts, key=lambda text: (-len(text), text))
    patterns = [
        rf"(?<![\w.-]){re.escape(text)}(?![\w-])"
        if words or len(text) < _MIN_PARTIAL_WORD
        else re.escape(text)
        for text in longest_first
    ]
    return re.compile(f"(?i)(?:{'|'.join(patterns)}){after}")


def _remove_user(match: re.Match[str]) -> str:
    scheme, user, host, path = match.groups()
    if user is None:
        # If the password contains a slash, the last "@" is the end of the user name and password.
        before, at, remaining = path.rpartition("@")
        if at and ":" in before.partition("/")[0]:
            return f"{scheme}{CREDENTIAL}@{remaining}"
        return match[0]
    return f"{scheme}{CREDENTIAL}@{host}{path}"


def _remove_internal(match: re.Match[str]) -> str:
    host = match[3].strip("[]").rstrip(".").lower()
    if "." not in host or _is_internal_ip(host) or _HOST.fullmatch(host):
        return ADDRESS
    return match[0]


def _remove_ipv4(match: re.Match[str]) -> str:
    return ADDRESS if _is_internal_ip(match[1]) else match[0]


def _remove_ipv6(match: re.Match[str]) -> str:
    address = match[2].rstrip(".")
    if ":" not in address or not _is_internal_ip(address):
        return match[0]
    opening, closing = match[1], match[4] or ""
    return ADDRESS if opening or not closing else f"{ADDRESS}{closing}"


def _is_internal_ip(text: str) -> bool:
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return not (mapped or address).is_global


def _bounded(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"

"""Filter that validates a JSON response while it streams."""

from collections.abc import Mapping
from typing import Any

from tailrace.server.runtime.stream_filter import BlockedError, FilterStream, StreamFilter
from tailrace.streaming.schemas.incremental_validator import IncrementalValidator
from tailrace.streaming.schemas.schema_shapes import MAX_WORK, SchemaShapes
from tailrace.streaming.schemas.structured_output import OutputReader
from tailrace.wrappers import ConfigurationError
from tailrace.wrappers.concurrency.worker_thread import MAX_INLINE_COST, json_text_cost, run_bounded
from tailrace.wrappers.request_options import OutputFormat, RequestOptions

_MISMATCH = "the response does not match the JSON schema of the server"
_REQUEST_MISMATCH = "the response does not match the JSON schema of the request"

# Maximum number of steps for the conversion of a caller's schema (see `SchemaShapes`). The rest of the schema is only checked at
# the end of the text.
_MAX_REQUEST_WORK = 20_000


class JsonSchemaFilter(StreamFilter):
    """Ends the turn at the first delta after which the text cannot become valid JSON for a schema.

    While the text streams, `IncrementalValidator` checks a part of the schema. At the end, the text is validated completely. No
    text is held back. An empty text is accepted, because responses with tool calls may have no text.

    Args:
        schema: The JSON schema; None for the output format of each request. With None, requests for text are not filtered. If a
            request for JSON has no schema, the response must be a JSON object. The JSON may be in a code fence, so a text that
            does not begin with an object or array is checked only at its end. If the response calls a tool, its text may be
            anything.

    Raises:
        ConfigurationError: The schema is invalid or too large.
    """

    scope = "output"

    def __init__(self, schema: Mapping[str, Any] | None = None) -> None:
        self._check: _Check | None = None
        if schema is not None:
            try:
                self._check = _Check(OutputFormat(schema_=dict(schema)), MAX_WORK, _MISMATCH)
            except ValueError as error:
                raise ConfigurationError(f"invalid schema of a filter: {error}") from error

    async def for_request(self, options: RequestOptions) -> StreamFilter | None:
        """Return this filter if it has a schema. Otherwise, return a filter for the output format of the request.

        Return None if the filter has no schema and the request is for text.
        """
        if self._check is not None:
            return self
        form = options.output
        if form is None:
            return None
        found = JsonSchemaFilter()
        found._check = await run_bounded(MAX_INLINE_COST + 1, _Check.of_request, form)
        return found

    def open(self) -> FilterStream:
        """Create a stream for one text.

        Raises:
            ConfigurationError: The filter has no schema; see `for_request`.
        """
        if self._check is None:
            raise ConfigurationError("the filter has no schema: use the filter that for_request returns")
        return _JsonStream(self._check)


class _Check:
    """A schema, prepared for the validation of texts.

    Attributes:
        shapes: Validates an incomplete text.
        mismatch: The message for a text that does not match.
        is_strict: True to reject a text that does not begin with JSON; False to check it only at its end.
    """

    def __init__(self, form: OutputFormat, max_work: int, mismatch: str, *, is_strict: bool = True) -> None:
        self.reader = OutputReader.of_format(form)
        schema = {"type": "object"} if form.schema_ is None else form.schema_
        self.shapes = SchemaShapes(schema, max_work)
        self.mismatch = mismatch
        self.is_strict = is_strict

    @classmethod
    def of_request(cls, form: OutputFormat) -> "_Check":
        return cls(form, _MAX_REQUEST_WORK, _REQUEST_MISMATCH, is_strict=False)


class _JsonStream(FilterStream):
    def __init__(self, check: _Check) -> None:
        self._reader = check.reader
        self._mismatch = check.mismatch
        # None for a text that is only checked at its end.
        self._validator: IncrementalValidator | None = IncrementalValidator(check.shapes)
        self._has_begun = check.is_strict
        self._texts: list[str] = []

    async def feed(self, text: str) -> str:
        if not self._has_begun and (beginning := text.lstrip()):
            self._has_begun = True
            if beginning[0] not in "{[":
                self._validator = None
        if self._validator is not None:
            try:
                self._validator.feed(text)
            except ValueError as error:
                raise BlockedError(f"{self._mismatch}: {error}") from None
        self._texts.append(text)
        return text

    async def close(self) -> str:
        text = "".join(self._texts)
        if not text or text.isspace():
            return ""
        if self._validator is not None:
            try:
                self._validator.close()
            except ValueError as error:
                raise BlockedError(f"{self._mismatch}: {error}") from None
        try:
            await run_bounded(json_text_cost(text.encode("utf-8", "replace")), self._reader.read, text)
        except ValueError:  # the error's message may contain values from the text
            raise BlockedError(self._mismatch) from None
        return ""

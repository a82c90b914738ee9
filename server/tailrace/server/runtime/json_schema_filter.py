"""Filter that validates a JSON response against a schema while it streams."""

from collections.abc import Mapping
from typing import Any

from tailrace.server.runtime.stream_filter import BlockedError, FilterStream, StreamFilter
from tailrace.streaming.schemas.incremental_validator import IncrementalValidator
from tailrace.streaming.schemas.schema_shapes import SchemaShapes
from tailrace.streaming.schemas.structured_output import OutputReader
from tailrace.wrappers import ConfigurationError
from tailrace.wrappers.concurrency.worker_thread import json_text_cost, run_bounded
from tailrace.wrappers.request_options import OutputFormat

_MISMATCH = "the response does not match the JSON schema of the server"


class JsonSchemaFilter(StreamFilter):
    """Ends the turn at the first delta after which the text cannot become valid JSON for a schema.

    While the text streams, `IncrementalValidator` checks types, names of members, required members, constants and enumerations.
    At the end, the text is validated against the complete schema. No text is held back. An empty text is accepted, because
    responses with tool calls may have no text.

    Args:
        schema: The JSON schema.

    Raises:
        ConfigurationError: The schema is not valid or too large.
    """

    scope = "output"

    def __init__(self, schema: Mapping[str, Any]) -> None:
        try:
            self.reader = OutputReader.of_format(OutputFormat(schema_=dict(schema)))
        except ValueError as error:
            raise ConfigurationError(f"invalid schema of a filter: {error}") from error
        self.shapes = SchemaShapes(schema)

    def open(self) -> FilterStream:
        """Create the stream for a text."""
        return _JsonStream(self)


class _JsonStream(FilterStream):
    def __init__(self, given: JsonSchemaFilter) -> None:
        self._reader = given.reader
        self._validator = IncrementalValidator(given.shapes)
        self._texts: list[str] = []

    async def feed(self, text: str) -> str:
        try:
            self._validator.feed(text)
        except ValueError as error:
            raise BlockedError(f"{_MISMATCH}: {error}") from None
        self._texts.append(text)
        return text

    async def close(self) -> str:
        text = "".join(self._texts)
        if not text or text.isspace():
            return ""
        try:
            self._validator.close()
        except ValueError as error:
            raise BlockedError(f"{_MISMATCH}: {error}") from None
        try:
            await run_bounded(json_text_cost(text.encode("utf-8", "replace")), self._reader.read, text)
        except ValueError:  # the error's message may contain values from the text
            raise BlockedError(_MISMATCH) from None
        return ""

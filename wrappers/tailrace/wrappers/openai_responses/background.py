"""Background responses of the Responses API. The provider stores such a response, so that a lost connection loses no data.

OpenAI, Azure OpenAI, and tailrace's own server support them (https://platform.openai.com/docs/guides/background).
"""

from collections.abc import Sequence
from typing import Any

from tailrace.wrappers.chunks import ChunkWrapper
from tailrace.wrappers.conversion.tool_names import ToolNames
from tailrace.wrappers.decoding.lenient_json import as_mapping, as_text
from tailrace.wrappers.errors import UpstreamError, UpstreamFault
from tailrace.wrappers.http.response import Body, ChunkStream, ErrorReporter
from tailrace.wrappers.openai_responses.decoder import ResponsesDecoder


class BackgroundStream(ChunkStream):
    """The chunks of a background response. If the connection is lost, a new connection can continue after `position`.

    Args:
        body: The body of the HTTP response.
        decoder: The decoder, which is the same for all connections of the response.
        names: See `ChunkStream`.
        model: See `ChunkStream`.
        response_id: The provider's id of the response; empty if it is not known.

    Attributes:
        response_id: The provider's id of the response; empty until the provider has sent it.
        position: The ``sequence_number`` of the last event; -1 before the first event.
    """

    __slots__ = ("_after", "_events", "position", "response_id")

    def __init__(
        self,
        body: Body,
        decoder: ResponsesDecoder,
        names: ToolNames | None,
        model: ErrorReporter,
        response_id: str = "",
    ) -> None:
        super().__init__(body, decoder, names, model)
        self._events = decoder
        self.response_id = response_id
        self._after = self.position = -1

    @property
    def has_ended(self) -> bool:
        """True if the response has ended, or the stream has ended early, for example because the connection was lost."""
        return self._has_ended or self._events.done

    async def __anext__(self) -> Sequence[ChunkWrapper[Any]]:
        chunks = await super().__anext__()
        for chunk in chunks:
            event = as_mapping(chunk.raw) or {}
            number = event.get("sequence_number")
            if type(number) is int:
                if number <= self._after:
                    raise UpstreamError(
                        "the provider repeats events of a background response: it ignores starting_after",
                        fault=UpstreamFault.INVALID,
                    )
                self.position = max(self.position, number)
            if not self.response_id:
                self.response_id = as_text((as_mapping(event.get("response")) or {}).get("id"))
        return chunks

    def resumed(self, body: Body) -> "BackgroundStream":
        """Return a stream of the rest of the response. ``body`` is the body of a new connection."""
        self._events.resume()
        rest = BackgroundStream(body, self._events, self._names, self._model, self.response_id)
        rest._after = rest.position = self.position
        return rest

"""Amazon Bedrock: decoder, history converter and model client for the Converse API, and a decoder for InvokeModel."""

from tailrace.wrappers.bedrock.chunk_wrapper import BedrockWrapper
from tailrace.wrappers.bedrock.converter import BedrockConverter
from tailrace.wrappers.bedrock.decoder import BedrockDecoder, wrap_chunk
from tailrace.wrappers.bedrock.events import ConverseEvents
from tailrace.wrappers.bedrock.eventstream import EventStreamDecoder, EventStreamFrame
from tailrace.wrappers.bedrock.model import BedrockModel

__all__ = (
    "BedrockConverter",
    "BedrockDecoder",
    "BedrockModel",
    "BedrockWrapper",
    "ConverseEvents",
    "EventStreamDecoder",
    "EventStreamFrame",
    "wrap_chunk",
)

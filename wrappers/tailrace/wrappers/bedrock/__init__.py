"""Amazon Bedrock: the Converse API and the streams of InvokeModel."""

from tailrace.wrappers.bedrock.client import BedrockModel
from tailrace.wrappers.bedrock.converter import BedrockConverter
from tailrace.wrappers.bedrock.decoder import BedrockDecoder, wrap_chunk
from tailrace.wrappers.bedrock.events import ConverseEvents
from tailrace.wrappers.bedrock.eventstream import EventStreamDecoder, EventStreamFrame
from tailrace.wrappers.bedrock.wrapper import BedrockWrapper

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

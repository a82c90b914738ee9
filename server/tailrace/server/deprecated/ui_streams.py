"""Deprecated: use `tailrace.server.protocols.ag_ui` and `tailrace.server.protocols.ai_sdk`."""

from tailrace.server.protocols.ag_ui import AgUiEndpoint
from tailrace.server.protocols.ai_sdk import AiSdkEndpoint

__all__ = ["AgUiEndpoint", "AiSdkEndpoint"]

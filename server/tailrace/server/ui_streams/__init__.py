"""The streams of user interfaces: this server's agent for clients of Vercel's AI SDK and of AG-UI.

See ``docs/ai-sdk.md`` and ``docs/ag-ui.md``. Both read the same log of a task: `turns` says what happened in a turn, in
terms that both protocols have, and an encoder a protocol writes that.
"""

from tailrace.server.ui_streams.ag_ui import AgUiEndpoint
from tailrace.server.ui_streams.ai_sdk import AiSdkEndpoint

__all__ = ["AgUiEndpoint", "AiSdkEndpoint"]

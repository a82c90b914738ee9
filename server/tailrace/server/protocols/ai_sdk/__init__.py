"""The UI message stream protocol of Vercel's AI SDK; see ``docs/ai-sdk.md``."""

from tailrace.server.protocols.ai_sdk.routes import AiSdkEndpoint

__all__ = ["AiSdkEndpoint"]

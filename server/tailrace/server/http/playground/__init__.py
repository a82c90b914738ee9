"""The playground: a chat page for browsers, and the web component ``<tailrace-chat>``. See ``docs/playground.md``."""

from tailrace.server.http.playground.pages import COMPONENT_PATH, EMBED_PATH, MODULE_PATHS, Playground

__all__ = ["COMPONENT_PATH", "EMBED_PATH", "MODULE_PATHS", "Playground"]

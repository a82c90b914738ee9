"""The playground: a chat with the agent in the browser, and the same as an element for any page; see ``docs/playground.md``."""

from tailrace.server.http.playground.pages import COMPONENT_PATH, EMBED_PATH, MODULE_PATHS, Playground

__all__ = ["COMPONENT_PATH", "EMBED_PATH", "MODULE_PATHS", "Playground"]

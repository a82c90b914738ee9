"""The AG-UI protocol; see ``docs/ag-ui.md``."""

from tailrace.server.protocols.ag_ui.routes import AgUiEndpoint

__all__ = ["AgUiEndpoint"]

"""What makes a server a node, from its settings."""

from typing import TYPE_CHECKING, Any

from tailrace.server.cluster.broker import Broker
from tailrace.server.cluster.engine import ClusterEngine
from tailrace.server.cluster.node import Node
from tailrace.server.cluster.store import ClusterStore
from tailrace.server.cluster.streams import TaskStreams
from tailrace.server.store import Retention
from tailrace.server.stores.database import parse_url
from tailrace.wrappers import ConfigurationError

if TYPE_CHECKING:
    from tailrace.server.handlers import Handler
    from tailrace.server.settings import Settings


class Cluster:
    """The parts of a node that belong together.

    Args:
        settings: Name a broker.
        retention: How long what is kept.

    Attributes:
        store: Shared with the other nodes.

    Raises:
        ConfigurationError: The settings cannot be used together, or a package is missing.
    """

    def __init__(self, settings: "Settings", retention: Retention) -> None:
        if parse_url(settings.store).get_backend_name() not in ("postgresql", "postgres"):
            raise ConfigurationError(
                "TAILRACE_EVENTS is for several servers with one store, which has to be PostgreSQL: set "
                "TAILRACE_STORE=postgresql://USER:PASSWORD@HOST/DATABASE, or leave TAILRACE_EVENTS out"
            )
        self._broker = Broker(settings.events)
        self._node = Node(settings.node_ttl)
        ttl = settings.stream_retention
        if retention.events is not None:
            ttl = min(ttl, retention.events)
        self.store = ClusterStore(
            settings.store, self._node, TaskStreams(self._broker), retention, stream_ttl=ttl
        )

    def engine(self, handler: "Handler", **options: Any) -> ClusterEngine:
        """The node's engine; ``options`` as for `Engine`."""
        return ClusterEngine(self.store, handler, node=self._node, broker=self._broker, **options)

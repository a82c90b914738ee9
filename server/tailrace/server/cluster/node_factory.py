"""Creation of the parts of a node from the settings."""

from typing import TYPE_CHECKING, Any

from tailrace.server.cluster.broker import Broker
from tailrace.server.cluster.engine import ClusterEngine
from tailrace.server.cluster.event_streams import TaskStreams
from tailrace.server.cluster.message_authentication import Authentication
from tailrace.server.cluster.node import Node
from tailrace.server.cluster.store import ClusterStore
from tailrace.server.runtime.observer import NO_OBSERVER, Observer
from tailrace.server.store.database import parse_url
from tailrace.server.store.secret_keys import SecretKeys
from tailrace.server.store.store import Retention
from tailrace.wrappers import ConfigurationError

if TYPE_CHECKING:
    from tailrace.server.runtime.handlers import Handler
    from tailrace.server.runtime.served_agents import ServedAgents
    from tailrace.server.settings import Settings


class Cluster:
    """The connected parts of a node.

    Args:
        settings: The settings.
        retention: The retention of events, tasks and usage.
        keys: The keys of the installation, which must be the same on all nodes.
        observer: The observer that is notified of rejected entries of the broker.

    Attributes:
        store: The store that the nodes share.

    Raises:
        ConfigurationError: The store is not on PostgreSQL, a URL is not valid, or a package is missing.
    """

    def __init__(
        self,
        settings: "Settings",
        retention: Retention,
        keys: SecretKeys,
        observer: Observer = NO_OBSERVER,
    ) -> None:
        if parse_url(settings.store).get_backend_name() not in ("postgresql", "postgres"):
            raise ConfigurationError(
                "TAILRACE_EVENTS requires a store on PostgreSQL: set "
                "TAILRACE_STORE=postgresql://USER:PASSWORD@HOST/DATABASE, or unset TAILRACE_EVENTS"
            )
        self._broker = Broker(settings.events)
        self._node = Node(settings.bounds.node_ttl)
        self._authentication = Authentication(keys, observer)
        ttl = settings.retention.streams
        if retention.events is not None:
            ttl = min(ttl, retention.events)
        self.store = ClusterStore(
            settings.store,
            self._node,
            TaskStreams(self._broker, self._authentication),
            retention,
            stream_ttl=ttl,
        )

    def engine(self, agents: "Handler | ServedAgents", **options: Any) -> ClusterEngine:
        """Create the engine of the node. ``options`` are as for `Engine`."""
        return ClusterEngine(
            self.store,
            agents,
            node=self._node,
            broker=self._broker,
            authentication=self._authentication,
            **options,
        )

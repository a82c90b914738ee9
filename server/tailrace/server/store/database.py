"""The interface to a database: transactions are functions, and write transactions run one at a time.

A transaction is an ordinary function over a SQLAlchemy `Connection`; the same functions run on every database. The modules
`sqlite` and `postgresql` run them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from tailrace.server.store.event_rows import Row, insert_events
from tailrace.wrappers import ConfigurationError, StoreError

T = TypeVar("T")

Work = Callable[[Connection], T]
"""The statements of one transaction. They must not keep the connection."""


class Database(ABC):
    """Runs transactions on one database, which no other server has open."""

    @abstractmethod
    async def open(self) -> None:
        """Connect, check that no other server has the database open and that it is not damaged, and migrate its tables.

        Raises:
            StoreError: It cannot be used; nothing is left open.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close all connections after the transactions under way; calling it again does nothing."""

    @abstractmethod
    async def write(self, work: Work[T], *, tasks: Collection[str] = ()) -> T:
        """Run a write transaction, after those that began before it.

        Cancellation ends the wait: the transaction is committed or rolled back as a whole.

        Args:
            work: The statements; run again if the database was busy.
            tasks: The tasks whose events it reads or changes.

        Raises:
            StoreError: It was rolled back.
        """

    async def append(
        self,
        rows: Sequence[Row],
        work: Work[object] | None = None,
        *,
        tasks: Collection[str] = (),
        is_large: bool = False,
    ) -> None:
        """Write events, and further short statements, in one transaction; as `write`.

        Args:
            rows: The events.
            work: Statements to run after the events are written.
            tasks: The tasks whose events it reads or changes.
            is_large: The write takes long; a short one may run in the event loop.

        Raises:
            StoreError: It was rolled back.
        """

        def both(connection: Connection) -> None:
            insert_events(connection, rows)
            if work is not None:
                work(connection)

        await self.write(both, tasks=tasks)

    async def purge(self) -> None:
        """Remove deleted content from files and caches, as far as the database allows it.

        PostgreSQL does so by itself (``VACUUM``).

        Raises:
            StoreError: The database does not work.
        """
        return

    @abstractmethod
    async def read(self, work: Work[T]) -> T:
        """Run a read transaction beside others. Cancellation does not damage the connection.

        Raises:
            StoreError: The read failed.
        """

    def tail(self, task_id: str) -> Sequence[Row]:
        """Return the last events of a task in order, including all that are not in their table yet."""
        return ()

    @abstractmethod
    def is_temporary(self, error: Exception) -> bool:
        """Return whether an error may pass; False if the database rejects this very statement."""

    @abstractmethod
    def explain(self, cause: BaseException) -> str:
        """Return a known error in plain words, with a remedy; empty for others."""

    def translating(self, action: str, *others: type[Exception]) -> AbstractContextManager[None]:
        """Convert errors of the database and its driver into `StoreError`: ``cannot {what}: …``.

        Args:
            action: The action.
            others: Errors of the driver that SQLAlchemy does not convert.
        """
        return _Translating(self, action, others)


class _Translating(AbstractContextManager[None]):
    """As `Database.translating`; not a generator, since every transaction uses it."""

    __slots__ = ("_action", "_database", "_others")

    def __init__(self, database: Database, action: str, others: tuple[type[Exception], ...]) -> None:
        self._database = database
        self._action = action
        self._others = others

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, (SQLAlchemyError, OSError, UnicodeEncodeError, *self._others)):
            return
        cause = getattr(error, "orig", None) or error
        reason = " ".join(str(cause).split()) or type(cause).__name__
        words = self._database.explain(cause)
        reason = f"{words} ({reason})" if words else reason
        raise StoreError(
            f"cannot {self._action}: {reason}", temporary=self._database.is_temporary(error)
        ) from error


def is_lost_connection(error: Exception) -> bool:
    """Return whether SQLAlchemy reports a lost connection."""
    return isinstance(error, DBAPIError) and error.connection_invalidated


def parse_url(url: str) -> URL:
    """Parse the URL of a database.

    Raises:
        ConfigurationError: It is not valid.
    """
    try:
        return make_url(url)
    except (ArgumentError, ValueError) as error:
        # The URL may contain a password: it is not repeated.
        raise ConfigurationError(
            f"TAILRACE_STORE: not the address of a database ({type(error).__name__}); "
            "use sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE"
        ) from None


def engine_options() -> dict[str, Any]:
    """Return the options of every engine: errors do not repeat parameters, which may be secrets."""
    return {"hide_parameters": True}

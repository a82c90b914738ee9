"""A database as the store uses it: transactions that are functions, one at a time for writing.

What is done in a transaction is an ordinary function over a SQLAlchemy `Connection`; the same functions run on every
database. How they are run, and what else is particular to one, stands in a module for each: `sqlite`, `postgresql`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from tailrace.server.stores.event_rows import Row, insert_events
from tailrace.wrappers import ConfigurationError, StoreError

T = TypeVar("T")

Work = Callable[[Connection], T]
"""What is done in one transaction. It is not to keep the connection."""


class Database(ABC):
    """Runs transactions on one database, which no other server may have open at the same time."""

    @abstractmethod
    async def open(self) -> None:
        """Connect, see that nobody else has it open and that it is whole, and bring its tables up to date.

        Raises:
            StoreError: It cannot be used; nothing is left open.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close all connections, when what is under way is done; more than once does no harm."""

    @abstractmethod
    async def write(self, work: Work[T], *, tasks: Collection[str] = ()) -> T:
        """Run a transaction that writes, after those that were begun before it.

        Cancelling gives up waiting for it: it is done wholly or not at all.

        Args:
            work: What is done; more than once, if the database is not free the first time.
            tasks: Whose events it looks at or changes.

        Raises:
            StoreError: Nothing of it was kept.
        """

    async def append(
        self, rows: Sequence[Row], work: Work[object] | None = None, *, tasks: Collection[str] = ()
    ) -> None:
        """Write events, and what else is brief to write, in one transaction; as `write`.

        Args:
            rows: The events.
            work: What is done when they are written.
            tasks: Whose events it looks at or changes.

        Raises:
            StoreError: Nothing of it was kept.
        """

        def both(connection: Connection) -> None:
            insert_events(connection, rows)
            if work is not None:
                work(connection)

        await self.write(both, tasks=tasks)

    @abstractmethod
    async def read(self, work: Work[T]) -> T:
        """Run a transaction that only reads, beside others. Cancelling does no harm to the connection.

        Raises:
            StoreError: It could not be read.
        """

    def tail(self, task_id: str) -> Sequence[Row]:
        """The last events of a task, in order, with all of those that are not in their table yet."""
        return ()

    @abstractmethod
    def is_temporary(self, error: Exception) -> bool:
        """Whether the database is in trouble that may pass; False when it does not take this very thing."""

    @abstractmethod
    def explain(self, cause: BaseException) -> str:
        """A fault that is known, in plain words and with what can be done; empty for others."""

    def translating(self, what: str, *others: type[Exception]) -> AbstractContextManager[None]:
        """Turn the errors of the database and its driver into `StoreError`: ``cannot {what}: …``.

        Args:
            what: What is being done.
            others: Errors of the driver that SQLAlchemy lets through.
        """
        return _Translating(self, what, others)


class _Translating(AbstractContextManager[None]):
    """As `Database.translating`; no generator, as it is around every transaction."""

    __slots__ = ("_database", "_others", "_what")

    def __init__(self, database: Database, what: str, others: tuple[type[Exception], ...]) -> None:
        self._database = database
        self._what = what
        self._others = others

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, (SQLAlchemyError, OSError, UnicodeEncodeError, *self._others)):
            return
        cause = getattr(error, "orig", None) or error
        told = " ".join(str(cause).split()) or type(cause).__name__
        words = self._database.explain(cause)
        told = f"{words} ({told})" if words else told
        raise StoreError(
            f"cannot {self._what}: {told}", temporary=self._database.is_temporary(error)
        ) from error


def is_lost_connection(error: Exception) -> bool:
    """Whether SQLAlchemy found that the connection itself is gone."""
    return isinstance(error, DBAPIError) and error.connection_invalidated


def parse_url(url: str) -> URL:
    """The parts of a database's address.

    Raises:
        ConfigurationError: It is none.
    """
    try:
        return make_url(url)
    except (ArgumentError, ValueError) as error:
        # The address may hold a password: it is not repeated.
        raise ConfigurationError(
            f"TAILRACE_STORE: not the address of a database ({type(error).__name__}); "
            "use sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE"
        ) from None


def engine_options() -> dict[str, Any]:
    """Options of every engine: what is written may be a secret, and is not repeated in errors."""
    return {"hide_parameters": True}

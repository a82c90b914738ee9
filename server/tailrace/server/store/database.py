"""The interface of a database.

A transaction is an ordinary function with a SQLAlchemy `Connection` as its argument. Write transactions run one at a time.
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
"""A function that executes the statements of one transaction. It must not store the connection."""


class Database(ABC):
    """Runs transactions on one database.

    Attributes:
        is_durable: Whether the content is kept after the process ends.
    """

    is_durable = True

    @abstractmethod
    async def open(self) -> None:
        """Connect to the database, check that it is not damaged and not in use by another server, and migrate its tables.

        Raises:
            StoreError: The database cannot be used. All connections are closed.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close all connections after the running transactions. Further calls do nothing."""

    @abstractmethod
    async def write(self, work: Work[T], *, tasks: Collection[str] = ()) -> T:
        """Run a write transaction after all earlier write transactions.

        After a cancellation, the transaction is still committed or rolled back completely.

        Args:
            work: The statements. They run again if the database was busy.
            tasks: The ids of the tasks whose events ``work`` reads or changes.

        Raises:
            StoreError: The transaction was rolled back.
        """

    async def append(
        self,
        rows: Sequence[Row],
        work: Work[object] | None = None,
        *,
        tasks: Collection[str] = (),
        is_large: bool = False,
    ) -> None:
        """Write events and run further short statements in one transaction. Otherwise like `write`.

        Args:
            rows: The events.
            work: Statements to run after the events are written.
            tasks: The ids of the tasks whose events ``work`` reads or changes.
            is_large: Whether the write takes long.

        Raises:
            StoreError: The transaction was rolled back.
        """

        def both(connection: Connection) -> None:
            insert_events(connection, rows)
            if work is not None:
                work(connection)

        await self.write(both, tasks=tasks)

    async def purge(self, *, is_patient: bool = True) -> bool:
        """Remove deleted content from the files and caches of the database.

        PostgreSQL removes deleted content itself (``VACUUM``).

        Args:
            is_patient: True to wait some seconds for other programs that read the database.

        Returns:
            Whether the content was removed; False if a reader prevented the removal.

        Raises:
            StoreError: The database is not available.
        """
        return True

    @abstractmethod
    async def read(self, work: Work[T]) -> T:
        """Run a read transaction in parallel with others.

        Raises:
            StoreError: The read failed.
        """

    def tail(self, task_id: str) -> Sequence[Row]:
        """Return the last events of a task in order, including all events that are not yet in the table of events."""
        return ()

    @abstractmethod
    def is_temporary(self, error: Exception) -> bool:
        """Return whether the same statement may succeed later."""

    @abstractmethod
    def explain(self, cause: BaseException) -> str:
        """Return the description of a known error and its remedy; an empty string for other errors."""

    def translating(self, action: str, *others: type[Exception]) -> AbstractContextManager[None]:
        """Convert errors of the database and its driver to `StoreError` with the message ``cannot {action}: …``.

        Args:
            action: A description of the action, for example "open the store".
            others: Errors of the driver that SQLAlchemy does not convert.
        """
        return _Translating(self, action, others)


class _Translating(AbstractContextManager[None]):
    """The context manager of `Database.translating`."""

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
        ConfigurationError: The URL is not valid.
    """
    try:
        return make_url(url)
    except (ArgumentError, ValueError) as error:
        # The URL may contain a password.
        raise ConfigurationError(
            f"TAILRACE_STORE: not the address of a database ({type(error).__name__}); "
            "use sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE"
        ) from None


def engine_options() -> dict[str, Any]:
    """Return the options of every engine. Errors must not contain parameters, because parameters may be secrets."""
    return {"hide_parameters": True}

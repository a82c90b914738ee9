"""Stored chat completions: turns of tasks that clients of the OpenAI-compatible API can list and change."""

from collections.abc import Mapping, Sequence

from sqlalchemy import ColumnElement, Connection, and_, delete, exists, insert, or_, select

from tailrace.server.store.database import Database
from tailrace.server.store.records import CompletionFilter, StoredCompletion
from tailrace.server.store.schema import completion_metadata, completions, tasks
from tailrace.streaming.a2a.lifecycle import TaskState

_COMPLETE = (TaskState.COMPLETED.value, TaskState.INPUT_REQUIRED.value)
_INSERT_COMPLETION = insert(completions).inline()


class CompletionStore:
    """Reads and changes the stored chat completions of all owners.

    `insert_completion` adds a completion in the transaction that begins its turn.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self, task_id: str, turn: int, owner: str) -> StoredCompletion | None:
        """Return a completion; None if this owner has no such completion.

        Raises:
            StoreError: The read failed.
        """
        return await self._database.read(lambda connection: _load(connection, task_id, turn, owner))

    async def list(
        self,
        owner: str,
        completion_filter: CompletionFilter,
        *,
        after: tuple[str, int] | None,
        is_descending: bool,
        limit: int,
    ) -> Sequence[tuple[str, int]] | None:
        """Return the tasks and turns of completions whose turns have ended, in the order of their requests.

        The last completion of a task is omitted unless the task is completed or waits for input.

        Args:
            owner: The owner.
            completion_filter: The filter.
            after: The task and turn of the completion after which the list begins; None for the beginning.
            is_descending: True to return the newest completion first.
            limit: The maximum number of completions.

        Returns:
            The completions; None if the completion ``after`` does not exist.

        Raises:
            StoreError: The read failed.
        """
        position = completions.c.position
        query = select(completions.c.task_id, completions.c.turn).where(
            *_conditions(owner, completion_filter)
        )
        query = query.order_by(position.desc() if is_descending else position).limit(limit)

        def work(connection: Connection) -> Sequence[tuple[str, int]] | None:
            page = query
            if after is not None:
                start = connection.scalar(select(position).where(*_this(*after, owner)))
                if start is None:
                    return None
                page = page.where(position < start if is_descending else position > start)
            return [(row.task_id, row.turn) for row in connection.execute(page)]

        return await self._database.read(work)

    async def replace_metadata(
        self, task_id: str, turn: int, owner: str, metadata: Mapping[str, str]
    ) -> bool:
        """Replace the metadata of a completion. Return False if this owner has no such completion.

        Raises:
            StoreError: The transaction was rolled back.
        """

        def work(connection: Connection) -> bool:
            if connection.scalar(select(completions.c.position).where(*_this(task_id, turn, owner))) is None:
                return False
            connection.execute(delete(completion_metadata).where(*_pairs_of(task_id, turn)))
            _insert_metadata(connection, task_id, turn, metadata)
            return True

        return await self._database.write(work)


def insert_completion(connection: Connection, owner: str, completion: StoredCompletion) -> None:
    """Add a completion."""
    key = {"task_id": completion.task_id, "turn": completion.turn}
    connection.execute(_INSERT_COMPLETION, {"owner": owner, "model": completion.model, **key})
    _insert_metadata(connection, completion.task_id, completion.turn, completion.metadata)


def _load(connection: Connection, task_id: str, turn: int, owner: str) -> StoredCompletion | None:
    model = connection.scalar(select(completions.c.model).where(*_this(task_id, turn, owner)))
    if model is None:
        return None
    name, value = completion_metadata.c.name, completion_metadata.c.value
    pairs = connection.execute(select(name, value).where(*_pairs_of(task_id, turn)).order_by(name))
    return StoredCompletion(task_id, turn, model, {row.name: row.value for row in pairs})


def _this(task_id: str, turn: int, owner: str) -> tuple[ColumnElement[bool], ...]:
    return completions.c.owner == owner, completions.c.task_id == task_id, completions.c.turn == turn


def _pairs_of(task_id: str, turn: int) -> tuple[ColumnElement[bool], ...]:
    return completion_metadata.c.task_id == task_id, completion_metadata.c.turn == turn


def _conditions(owner: str, completion_filter: CompletionFilter) -> list[ColumnElement[bool]]:
    """Return the conditions for the finished completions of an owner that match a filter."""
    later = completions.alias()
    conditions = [
        completions.c.owner == owner,
        or_(
            exists().where(tasks.c.id == completions.c.task_id, tasks.c.state.in_(_COMPLETE)),
            exists().where(later.c.task_id == completions.c.task_id, later.c.turn > completions.c.turn),
        ),
    ]
    if completion_filter.model:
        conditions.append(completions.c.model == completion_filter.model)
    pair = completion_metadata.c
    for name, value in completion_filter.metadata.items():
        of_turn = and_(pair.task_id == completions.c.task_id, pair.turn == completions.c.turn)
        conditions.append(exists().where(of_turn, pair.name == name, pair.value == value))
    return conditions


def _insert_metadata(connection: Connection, task_id: str, turn: int, metadata: Mapping[str, str]) -> None:
    key = {"task_id": task_id, "turn": turn}
    rows = [{**key, "name": name, "value": value} for name, value in metadata.items()]
    if rows:
        connection.execute(insert(completion_metadata), rows)

"""The list of conversations in the store: it equals the list that is computed from all tasks, also after a migration."""

import random
import sqlite3
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from support.postgres import PostgresServer
from support.store_objects import LONG_AGO, open_store, user_message
from tailrace.server.store.conversation_rows import title_of
from tailrace.server.store.records import (
    ConversationFilter,
    ListPosition,
    Retention,
    StoredBranch,
    StoredConversation,
    TaskWrite,
)
from tailrace.server.store.store import Store
from tailrace.streaming import Event, TaskState
from tailrace.streaming.a2a.models import Message, Part, Role, Task, TaskStatus
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI

WEEK = Retention(events=None, tasks=7 * 24 * 3600.0)
TEXTS = (
    "Name a river",
    "Cafe\u0301 in ISPARTA",
    "ﬁne tea",
    "Größe\n 100 %",
    "a_b\\c",
    "",
    " \t",
    "İstanbul" * 20,
    "x" * 70,
    "🌊 " * 40,
    "שָׁלוֹם",
    "مُحَمَّد",
)
QUERIES = (
    "100 %",
    "größe",
    "A_B\\",
    "mine",
    "nothing",
    "istanbul",
    "İSTANBUL",
    "i\u0307stanbul",
    "CAFÉ",
    "cafe in \u0131sparta",
    "fine TEA",
    "שלום",
    "محمد",
    "مُحمد",
)
STEPS = (
    "add",
    "old",
    "add_unlisted",
    "follow",
    "delete_task",
    "delete_conversation",
    "rename",
    "expire",
    "add",
)


@dataclass
class KnownTask:
    """A task that was committed."""

    id: str
    context_id: str
    is_listed: bool
    updated: datetime
    title: str = ""
    branch: StoredBranch | None = None
    number: int = 1


@dataclass
class Known:
    """All that was committed for an owner, and the list that follows from it."""

    owner: str
    tasks: list[KnownTask] = field(default_factory=list[KnownTask])
    order: list[str] = field(default_factory=list[str])  # conversations, by their newest messages
    names: dict[str, str] = field(default_factory=dict[str, str])
    links: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def of(self, context_id: str) -> list[KnownTask]:
        """The listed tasks of a conversation, the oldest first."""
        return [each for each in self.tasks if each.context_id == context_id and each.is_listed]

    def entries(self) -> list[tuple[str, str, StoredBranch | None]]:
        """The expected list."""
        found = ((name, self.of(name)) for name in reversed(self.order))
        return [
            (name, self.names.get(name) or tasks[0].title, tasks[0].branch) for name, tasks in found if tasks
        ]

    def family(self, context_id: str) -> set[str]:
        """The conversations that are connected with a conversation by branches."""
        found = {context_id}
        while True:
            more = {name for link in self.links if found & set(link) for name in link}
            if more <= found:
                return found
            found |= more

    def touch(self, context_id: str) -> None:
        self.order = [*(name for name in self.order if name != context_id), context_id]

    def drop(self, is_dropped: Callable[[KnownTask], bool]) -> None:
        self.tasks = [each for each in self.tasks if not is_dropped(each)]
        self.names = {name: title for name, title in self.names.items() if self.of(name)}


def message(body: str, metadata: dict[str, Any] | None = None, filename: str | None = None) -> Message:
    parts = [Part(text=body)] if body or filename is None else []
    if filename is not None:
        parts.append(Part(raw=b"x" * 1000, filename=filename))
    return Message(
        message_id=str(uuid4()), role=Role.USER, parts=tuple(parts), metadata=metadata or {}, task_id="t"
    )


def new_task(
    known: Known, context_id: str, received: Message, preceding: Sequence[Message], updated: datetime
) -> TaskWrite:
    """The first write of a completed task."""
    task = Task(
        id=str(uuid4()),
        context_id=context_id,
        status=TaskStatus(state=TaskState.COMPLETED, timestamp=updated),
        history=(received,),
    )
    return TaskWrite(
        task.id,
        known.owner,
        context_id,
        (Event(1, b"{}", TaskState.COMPLETED),),
        task,
        (*preceding, received),
        updated,
        received=received,
    )


class Steps:
    """Changes a store at random, and records what was committed."""

    def __init__(self, store: Store, chance: random.Random, owner: str = "") -> None:
        self.store = store
        self.chance = chance
        self.known = Known(owner or str(uuid4()))
        self.others: list[Known] = []
        self.plain = [f"{self.known.owner}-{at}" for at in range(3)]
        self.clock = datetime.now(UTC) - timedelta(hours=1)

    async def add(self, *, is_old: bool = False) -> None:
        """Commit a new task, possibly one that begins a branch or has earlier messages."""
        known, chance = self.known, self.chance
        context_id = chance.choice([*self.plain, *(name for name, _, _ in known.entries())])
        body, name = chance.choice(TEXTS), chance.choice([None, None, "", "my  file.txt"])
        metadata, branch, preceding = {}, None, []
        if known.entries() and chance.random() < 0.3:
            origin, origin_message = chance.choice(known.entries())[0], str(uuid4())
            metadata = {EXTENSION_URI: {"branch": {"contextId": origin, "messageId": origin_message}}}
            context_id = str(uuid4())
            known.links.append((context_id, origin))
            branch = origin, origin_message
        if chance.random() < 0.3:
            tool = {EXTENSION_URI: {"by": "agent"}}
            preceding = [message("tool", tool), message(chance.choice(TEXTS)), message("second")]
        received = message(body, metadata, name)
        self.clock += timedelta(seconds=1)
        updated = LONG_AGO if is_old else self.clock
        write = new_task(known, context_id, received, preceding, updated)
        await self.store.commit([write])
        first = [received] if branch is not None else [*preceding[1:], received]
        titles = [
            title_of([part.text for part in each.parts if part.text])
            or title_of([part.filename for part in each.parts if part.raw is not None][:1])
            for each in first
        ]
        title = next((each for each in titles if each), "")
        stored = branch and StoredBranch(received.message_id, *branch)
        known.tasks.append(
            KnownTask(write.task_id, context_id, is_listed=True, updated=updated, title=title, branch=stored)
        )
        known.touch(context_id)

    async def add_unlisted(self) -> None:
        context_id = self.chance.choice(self.plain)
        task = Task(id=str(uuid4()), context_id=context_id, status=TaskStatus(state=TaskState.COMPLETED))
        if self.chance.random() < 0.5:
            await self.store.put_unlisted_task(
                task.model_copy(
                    update={"status": TaskStatus(state=TaskState.COMPLETED, timestamp=self.clock)}
                ),
                self.known.owner,
            )
        else:
            first = (Event(1, b"{}", TaskState.COMPLETED),)
            items = [message("item")]
            await self.store.commit(
                [
                    TaskWrite(
                        task.id,
                        self.known.owner,
                        context_id,
                        first,
                        task,
                        items,
                        self.clock,
                        is_listed=False,
                        received=items[0],
                    )
                ]
            )
        self.known.tasks.append(KnownTask(task.id, context_id, is_listed=False, updated=self.clock))

    async def follow(self) -> None:
        """Commit a further message to a task."""
        listed = [each for each in self.known.tasks if each.is_listed]
        if listed:
            task = self.chance.choice(listed)
            task.number += 1
            receipt = (Event(task.number, b"{}", TaskState.WORKING),)
            received = message("further")
            ids = (task.id, self.known.owner, task.context_id)
            await self.store.commit(
                [TaskWrite(*ids, receipt, messages=(received,), updated=task.updated, received=received)]
            )
            await self.store.commit(
                [TaskWrite(*ids, (Event(task.number + 1, b"{}", TaskState.COMPLETED),), updated=task.updated)]
            )
            task.number += 1
            self.known.touch(task.context_id)

    async def delete_task(self) -> None:
        if self.known.tasks:
            gone = self.chance.choice(self.known.tasks)
            assert await self.store.delete_task(gone.id, self.known.owner)
            self.known.drop(lambda task: task is gone)

    async def delete_conversation(self) -> None:
        context_id = self.chance.choice([*self.plain, *self.known.order])
        for each in await self.store.list_conversation_tasks(context_id, self.known.owner, 100):
            assert await self.store.delete_task(each, self.known.owner)
        self.known.drop(lambda task: task.context_id == context_id)

    async def rename(self) -> None:
        context_id = self.chance.choice([*self.plain, *self.known.order])
        title = self.chance.choice(["", "Mine", "ÄRGER 100 %", "y" * 200])
        renamed = await self.store.conversations.rename(context_id, self.known.owner, title)
        assert (renamed is not None) == bool(self.known.of(context_id))
        if renamed is not None:
            self.known.names[context_id] = title
            assert renamed.title == (title or self.known.of(context_id)[0].title)

    async def expire(self) -> None:
        while await self.store.drop_expired():
            pass
        for known in (self.known, *self.others):
            known.drop(lambda task: task.updated == LONG_AGO)

    async def run(self, count: int) -> None:
        """Change the store at random, and compare the list after each change."""
        for _ in range(count):
            name = self.chance.choice(STEPS)
            await (self.add(is_old=True) if name == "old" else getattr(self, name)())
            await self.compare()

    async def compare(self) -> None:
        known = self.known
        expected = known.entries()
        assert await all_of(self.store, known.owner) == expected
        query = self.chance.choice(QUERIES)
        found = [each for each in expected if letters(query) in letters(each[1])]
        assert await all_of(self.store, known.owner, query) == found
        if expected:
            name, _, _ = self.chance.choice(expected)
            family = known.family(name)
            related = [each for each in expected if each[0] in family]
            assert await all_of(self.store, known.owner, related_to=name) == related


def letters(title: str) -> str:
    """The text of a title without accents, in lower case."""
    folded = unicodedata.normalize("NFKD", title).casefold().replace("\u0131", "i")
    return "".join(each for each in folded if unicodedata.category(each) != "Mn")


async def all_of(
    store: Store, owner: str, query: str = "", related_to: str = "", size: int = 3
) -> list[tuple[str, str, StoredBranch | None]]:
    """The complete list, page by page."""
    found: list[StoredConversation] = []
    after: ListPosition | None = None
    has_more = True
    while has_more:
        page = await store.conversations.page(
            owner, ConversationFilter(query, related_to), after=after, limit=size
        )
        found += page.conversations
        has_more = page.has_more
        after = ListPosition(found[-1].updated, found[-1].context_id) if found else None
    return [(each.context_id, each.title, each.branch) for each in found]


@pytest.mark.parametrize("seed", range(5))
async def test_the_list_is_what_follows_from_all_tasks(store_url: str, seed: int) -> None:
    async with open_store(store_url, WEEK) as store:
        await Steps(store, random.Random(seed)).run(30)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=15)
async def test_the_list_in_memory_is_what_follows_from_all_tasks(seed: int) -> None:
    async with open_store("sqlite://", WEEK) as store:
        await Steps(store, random.Random(seed)).run(30)


async def test_another_owner_does_not_change_a_list(store_url: str) -> None:
    async with open_store(store_url, WEEK) as store:
        one, two = Steps(store, random.Random(1), "me"), Steps(store, random.Random(2), "you")
        one.plain = two.plain = ["c1", "c2", "c3"]
        one.others, two.others = [two.known], [one.known]
        for _ in range(20):
            for each in (one, two):
                await each.run(1)
            for each in (one, two):
                await each.compare()


async def test_conversations_with_the_same_time_are_on_one_page_each(store_url: str) -> None:
    async with open_store(store_url) as store:
        known = Known("me")
        for name in "abcd":
            await store.commit([new_task(known, name, user_message(name), (), LONG_AGO)])
    await on(
        store_url,
        lambda connection: connection.execute(
            text("UPDATE conversations SET updated = (SELECT max(updated) FROM conversations)")
        ),
    )
    async with open_store(store_url) as store:
        for size in (1, 2, 3):
            assert [name for name, _, _ in await all_of(store, "me", size=size)] == ["d", "c", "b", "a"]


async def test_a_nul_character_does_not_end_the_searched_text(store_url: str) -> None:
    async with open_store(store_url) as store:
        await store.commit([new_task(Known("me"), "a", user_message("rivers"), (), LONG_AGO)])
        assert await all_of(store, "me", "rivers\0of Asia") == []
        assert len(await all_of(store, "me", "riv\0ers")) == 1


async def test_a_task_that_another_node_adds_during_a_deletion_keeps_its_conversation(
    postgres: PostgresServer, postgresql_url: str
) -> None:
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    async with open_store(postgresql_url) as store:
        first = new_task(Known("me"), "c", user_message("one"), (), LONG_AGO)
        await store.commit([first])
        async with postgres.connected("test") as other, anyio.create_task_group() as group:
            transaction = other.transaction()
            await transaction.start()
            await other.execute(
                "INSERT INTO conversation_tasks (task_id, owner, context_id, title, search_text)"
                " VALUES ('t2', 'me', 'c', 'two', 'two')"
            )
            await other.execute("UPDATE conversations SET updated = now()")
            group.start_soon(store.delete_task, first.task_id, "me")
            while not await postgres.execute(waiting):
                await anyio.lowlevel.checkpoint()
            await transaction.commit()
        assert await all_of(store, "me") == [("c", "two", None)]


async def on(url: str, work: Callable[[Connection], Any]) -> Any:
    """Run a function on a database, independently of the store."""
    drivers = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}
    parsed = make_url(url)
    engine = create_async_engine(parsed.set(drivername=drivers[parsed.get_backend_name()]))
    async with engine.begin() as connection:
        result = await connection.run_sync(work)
    await engine.dispose()
    return result


def make_former(connection: Connection) -> None:
    """Change the tables to those of version 0013."""
    for table in ("conversations", "conversation_tasks"):
        connection.execute(text(f"DROP TABLE {table}"))
    connection.execute(text("UPDATE tailrace_version SET version_num = '0013'"))


@pytest.mark.parametrize("seed", range(4))
async def test_a_migration_lists_the_existing_conversations(store_url: str, seed: int) -> None:
    async with open_store(store_url) as store:
        steps = [Steps(store, random.Random(f"{seed}{owner}"), owner) for owner in ("", "you")]
        steps[0].others, steps[1].others = [steps[1].known], [steps[0].known]
        for each in steps:
            for _ in range(12):
                await each.add()
            await each.add_unlisted()
    await on(store_url, make_former)
    async with open_store(store_url, WEEK) as store:
        for each in steps:
            each.store = store
            # The order is that of the newest tasks, because the times of messages were not stored.
            newest = {task.context_id: task.updated for task in each.known.tasks if task.is_listed}
            each.known.order.sort(key=lambda name, newest=newest: newest.get(name, LONG_AGO))
            await each.compare()
            await each.run(10)


async def test_a_migration_reads_one_task_at_a_time(sqlite_url: str) -> None:
    async with open_store(sqlite_url) as store:
        steps = Steps(store, random.Random(0))
        for _ in range(10):
            await steps.add()
    await on(sqlite_url, make_former)
    queries: list[str] = []

    def remember(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        queries.append(statement)

    event.listen(Engine, "before_cursor_execute", remember)
    try:
        async with open_store(sqlite_url) as steps.store:
            newest = {task.context_id: task.updated for task in steps.known.tasks}
            steps.known.order.sort(key=lambda name: newest[name])
            await steps.compare()
    finally:
        event.remove(Engine, "before_cursor_execute", remember)
    large = [each for each in queries if each.startswith("SELECT tasks.snapshot") or "messages.body" in each]
    assert large
    for each in large:
        assert " WHERE tasks.id = ?" in each.replace("\n", "") or "LIMIT ?" in each


async def test_pages_are_read_in_the_order_of_an_index_without_messages(sqlite_url: str) -> None:
    queries: list[tuple[str, Any]] = []

    def remember(_connection: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> None:
        queries.append((statement, values))

    async with open_store(sqlite_url) as store:
        steps = Steps(store, random.Random(0))
        for _ in range(10):
            await steps.add()
        name = steps.known.order[0]
        event.listen(Engine, "before_cursor_execute", remember)
        try:
            for wanted in (
                ConversationFilter(),
                ConversationFilter("river"),
                ConversationFilter(related_to=name),
            ):
                for after in (None, ListPosition(datetime.now(UTC), name)):
                    await store.conversations.page(steps.known.owner, wanted, after=after, limit=5)
        finally:
            event.remove(Engine, "before_cursor_execute", remember)
    assert len(queries) == 6
    database = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))
    for query, values in queries:
        plan = [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {query}", values)]
        assert "SEARCH conversation_tasks USING INDEX conversation_tasks_by_task (task_id=?)" in plan
        [search] = [step for step in plan if step.startswith("SEARCH conversations USING INDEX")]
        assert ("conversations_by_root" if "root" in query.partition("WHERE")[2] else "by_time") in search
        assert not any(
            "tasks_by" in step or "messages" in step for step in plan if "conversation" not in step
        )
        assert not any("SCAN conversations" in step for step in plan)
    database.close()


async def test_a_message_writes_at_most_two_rows_of_conversations_and_a_token_none(store_url: str) -> None:
    seen: list[str] = []

    def remember(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        seen.append(statement.split()[2])

    async with open_store(store_url) as store:
        known = Known("me")
        write = new_task(known, "c", user_message("one"), (), datetime.now(UTC))
        ids = (write.task_id, "me", "c")
        further = TaskWrite(
            *ids,
            (Event(3, b"{}", TaskState.WORKING),),
            updated=write.updated,
            received=user_message("two"),
        )
        event.listen(Engine, "before_cursor_execute", remember)
        try:
            counts: list[list[str]] = []
            for each in (write, TaskWrite(*ids, (Event(2, b"{}"),)), further):
                await store.commit([each])
                counts.append([table for table in seen if table.startswith("conversation")])
                seen.clear()
        finally:
            event.remove(Engine, "before_cursor_execute", remember)
    assert counts == [["conversation_tasks", "conversations"], [], ["conversations"]]

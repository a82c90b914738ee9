"""Two callers in one store: every method that takes an owner finds, counts and changes that owner's rows only."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass

import anyio
import pytest

from support.store_objects import LONG_AGO, numbers_of, open_store, task, user_message
from tailrace.server.store.store import ListPosition, PushConfig, SendKey, Store, TaskFilter, TaskWrite
from tailrace.streaming import Event, TaskState
from tailrace.streaming.a2a.requests import TaskPushNotificationConfig
from tailrace.wrappers import StoreError


@dataclass(frozen=True)
class Caller:
    """A caller with one task, whose conversation and idempotency key have the same ids as those of the others.

    Attributes:
        name: The owner.
    """

    name: str

    @property
    def task_id(self) -> str:
        """The id of the caller's task."""
        return f"task-of-{self.name}"

    @property
    def webhook(self) -> PushConfig:
        """The webhook of the task."""
        config = TaskPushNotificationConfig(task_id=self.task_id, id="w", url=f"https://{self.name}.example/")
        return PushConfig(self.name, "1.0", config)

    def write(self, number: int, *, with_key: bool = False) -> TaskWrite:
        """Return a write of the task with one event, a message and a snapshot."""
        return TaskWrite(
            self.task_id,
            self.name,
            "shared",
            (Event(number, b"{}", TaskState.WORKING),),
            task(self.task_id, TaskState.WORKING, "shared"),
            (user_message(f"message of {self.name}"),),
            webhooks=(self.webhook,),
            send_key=SendKey("key", f"fingerprint of {self.name}", self.task_id) if with_key else None,
        )


ALICE, BOB = Caller("alice"), Caller("bob")
OTHERS = [(ALICE, BOB), (BOB, ALICE)]

both = pytest.mark.parametrize(("caller", "other"), OTHERS, ids=["alice", "bob"])


@pytest.fixture
async def store(store_url: str) -> AsyncGenerator[Store]:
    async with open_store(store_url) as store:
        await store.commit([ALICE.write(1, with_key=True), BOB.write(1, with_key=True)])
        yield store


@both
async def test_a_task_is_loaded_for_its_owner(store: Store, caller: Caller, other: Caller) -> None:
    stored = await store.load_task(caller.task_id, caller.name)
    assert stored is not None
    assert stored.task.id == caller.task_id
    assert await store.load_task(other.task_id, caller.name) is None


@both
async def test_a_list_has_the_tasks_of_its_owner(store: Store, caller: Caller, other: Caller) -> None:
    for wanted in (TaskFilter(), TaskFilter(context_id="shared"), TaskFilter(state=TaskState.WORKING)):
        page = await store.list_tasks(caller.name, wanted, after=None, limit=10)
        assert [position.id for position, _ in page.tasks] == [caller.task_id]
        assert (page.total, page.has_more) == (1, False)
        after = ListPosition(LONG_AGO.replace(year=2030), other.task_id)
        page = await store.list_tasks(caller.name, wanted, after=after, limit=10)
        assert [position.id for position, _ in page.tasks] == [caller.task_id]


@both
async def test_a_conversation_has_the_messages_of_its_owner(
    store: Store, caller: Caller, other: Caller
) -> None:
    messages = [user_message(f"message of {caller.name}")]
    assert await store.load_conversation("shared", caller.name, 10) == messages
    assert await store.load_history("shared", caller.name, 10) == (messages, {caller.task_id})
    assert await store.load_task_messages(caller.task_id, caller.name) == messages
    assert await store.load_task_messages(other.task_id, caller.name) == []
    # Messages of both between those of one: the rows of a conversation are read by their positions.
    await store.commit([ALICE.write(2), BOB.write(2)])
    assert await store.load_conversation("shared", caller.name, 10) == messages * 2
    assert await store.load_task_messages(caller.task_id, caller.name) == messages * 2


@both
async def test_an_idempotency_key_belongs_to_its_owner(store: Store, caller: Caller, other: Caller) -> None:
    assert await store.load_send_key(caller.name, "key") == SendKey(
        "key", f"fingerprint of {caller.name}", caller.task_id
    )
    await store.delete_task(other.task_id, other.name)
    assert await store.load_send_key(other.name, "key") is None
    assert await store.load_send_key(caller.name, "key") is not None


@both
async def test_the_webhooks_of_a_task_are_loaded_for_its_owner(
    store: Store, caller: Caller, other: Caller
) -> None:
    assert await store.load_push_configs(caller.task_id, caller.name) == [caller.webhook]
    assert await store.load_push_configs(other.task_id, caller.name) == []


@both
async def test_a_task_is_deleted_for_its_owner(store: Store, caller: Caller, other: Caller) -> None:
    assert not await store.delete_task(other.task_id, caller.name)
    assert await store.load_task(other.task_id, other.name) is not None
    assert await numbers_of(store, other.task_id) == [1]
    assert await store.delete_task(caller.task_id, caller.name)
    assert await store.load_task(other.task_id, other.name) is not None


@both
@pytest.mark.parametrize("events", [(Event(2, b"{}", TaskState.COMPLETED),), ()], ids=["event", "snapshot"])
async def test_a_task_is_written_for_its_owner(
    store: Store, caller: Caller, other: Caller, events: tuple[Event, ...]
) -> None:
    snapshot = task(other.task_id, TaskState.COMPLETED, "shared")
    with pytest.raises(StoreError):
        await store.commit([TaskWrite(other.task_id, caller.name, "shared", events, snapshot)])
    stored = await store.load_task(other.task_id, other.name)
    assert stored is not None
    assert stored.task.status.state is TaskState.WORKING
    assert await numbers_of(store, other.task_id) == [1]


@both
async def test_a_record_is_replaced_by_its_owner_only(store: Store, caller: Caller, other: Caller) -> None:
    ended = task("record", TaskState.COMPLETED, "shared")
    assert not await store.put_unlisted_task(ended, caller.name, may_create=False)
    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(store.put_unlisted_task, ended, caller.name)
    assert not await store.put_unlisted_task(ended, other.name)
    assert not await store.put_unlisted_task(task(caller.task_id, TaskState.COMPLETED, "shared"), caller.name)
    changed = ended.model_copy(update={"metadata": {"changed": True}})
    assert await store.put_unlisted_task(changed, caller.name, may_create=False)
    stored = await store.load_task("record", caller.name)
    assert stored is not None
    assert (stored.task, stored.number) == (changed, 0)
    assert await store.load_task("record", other.name) is None
    assert await store.delete_task("record", caller.name)
    assert not await store.put_unlisted_task(changed, caller.name, may_create=False)

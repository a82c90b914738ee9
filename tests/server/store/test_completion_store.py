"""Stored chat completions in each database: lists, filters, metadata, owners and deletion."""

from collections.abc import Mapping
from typing import Any

import pytest

from support.store_objects import LONG_AGO, open_store, task
from tailrace.server.store.records import CompletionFilter, StoredCompletion
from tailrace.server.store.store import Retention, Store, TaskWrite
from tailrace.streaming import Event, TaskState

ODD = {"": "\x00", "back\\slash": 'quo"te', "a": "%", "A": "_"}


async def add(
    store: Store,
    task_id: str,
    turn: int = 1,
    *,
    owner: str = "me",
    state: TaskState = TaskState.COMPLETED,
    model: str = "m",
    metadata: Mapping[str, str] | None = None,
    **further: str,
) -> None:
    """Write a turn of a task that a stored completion requested."""
    completion = StoredCompletion(task_id, turn, model, {**(metadata or {}), **further})
    events = (Event(turn, b"{}", state),)
    await store.commit(
        [
            TaskWrite(
                task_id, owner, "c", events, task(task_id, state, updated=LONG_AGO), completion=completion
            )
        ]
    )


async def listed(store: Store, owner: str = "me", **options: Any) -> list[str]:
    """The completions of a list, as ``TASK-TURN``."""
    wanted = CompletionFilter(options.pop("model", ""), options.pop("metadata", {}))
    given: dict[str, Any] = {"after": None, "is_descending": False, "limit": 9, **options}
    found = await store.completions.list(owner, wanted, **given)
    assert found is not None
    return [f"{task_id}-{turn}" for task_id, turn in found]


async def test_lists_are_ordered_and_filtered(store_url: str) -> None:
    async with open_store(store_url) as store:
        await add(store, "z", x="1", y="2")
        await add(store, "a", model="n", x="1")
        await add(store, "w", state=TaskState.WORKING)
        await add(store, "f", state=TaskState.FAILED)
        await add(store, "i", state=TaskState.INPUT_REQUIRED)
        await add(store, "l", state=TaskState.INPUT_REQUIRED)
        await add(store, "l", 2, state=TaskState.FAILED)
        await add(store, "b", metadata=ODD)
        await add(store, "z2", owner="another", x="1")
        ids = ["z-1", "a-1", "i-1", "l-1", "b-1"]
        assert await listed(store) == ids
        assert await listed(store, is_descending=True, limit=2) == ids[:2:-1]
        assert await listed(store, after=("a", 1), limit=2) == ids[2:4]
        assert await listed(store, after=("a", 1), is_descending=True) == ids[:1]
        assert await listed(store, metadata={"x": "1"}) == ids[:2]
        assert await listed(store, metadata={"x": "1"}, model="n") == ["a-1"]
        assert await listed(store, metadata={"x": "1", "y": "2"}) == ["z-1"]
        for pair in ODD.items():
            assert await listed(store, metadata=dict([pair])) == ["b-1"]
        wanted = CompletionFilter()
        first: dict[str, Any] = {"is_descending": False, "limit": 1}
        for after in (("z2", 1), ("unknown", 1), ("z", 2)):
            assert await store.completions.list("me", wanted, after=after, **first) is None


async def test_metadata_is_replaced_for_its_owner_only(store_url: str) -> None:
    async with open_store(store_url) as store:
        await add(store, "t", x="1")
        await add(store, "t", 2, x="2")
        assert not await store.completions.replace_metadata("t", 1, "another", {})
        assert not await store.completions.replace_metadata("t", 3, "me", {"x": "3"})
        assert await store.completions.load("t", 1, "another") is None
        assert await store.completions.replace_metadata("t", 1, "me", ODD)
        assert await store.completions.load("t", 1, "me") == StoredCompletion("t", 1, "m", ODD)
        assert await store.completions.load("t", 2, "me") == StoredCompletion("t", 2, "m", {"x": "2"})
        assert await listed(store, metadata={"x": "1"}) == []


@pytest.mark.parametrize("expires", [False, True])
async def test_completions_are_deleted_with_their_task(store_url: str, expires: bool) -> None:
    async with open_store(store_url, Retention(tasks=60.0)) as store:
        await add(store, "t", x="1")
        if expires:
            while await store.drop_expired():
                pass
        else:
            assert await store.delete_task("t", "me")
        assert await store.completions.load("t", 1, "me") is None
        await add(store, "t")
        assert await store.completions.load("t", 1, "me") == StoredCompletion("t", 1, "m", {})

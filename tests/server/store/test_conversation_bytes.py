"""Of a conversation that is larger than a turn may load, the older messages are not read from the database."""

import tracemalloc

import pytest

from support.store_objects import open_store, task, user_message, write
from tailrace.server.store import store as stores
from tailrace.server.store.store import TaskWrite
from tailrace.streaming import TaskState

MEGABYTE = 1_000_000


async def test_messages_beyond_the_bound_take_no_memory(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "MAX_CONVERSATION_BYTES", 2 * MEGABYTE)
    async with open_store(store_url) as store:
        messages = [
            user_message(f"{number}" * (MEGABYTE // 2)) for number in range(10, 30)
        ]  # 2 MB each, as JSON
        await store.commit(
            [TaskWrite("t", "me", "c", write("t", 1).events, task("t", TaskState.WORKING), messages)]
        )
        await store.load_conversation("c", "me", 1)  # what the first query of its kind makes
        tracemalloc.start()
        try:
            found = await store.load_conversation("c", "me", 100)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert found == messages[-1:]
        assert peak < 20 * MEGABYTE  # of 40

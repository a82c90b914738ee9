"""The store: committed events are readable, in order, by their owner only, and batches are atomic."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from support.store_objects import numbers_of, open_store, task, user_message, write
from tailrace.server.store import store as stores
from tailrace.server.store.store import ListPosition, PushConfig, Store, TaskFilter, TaskWrite
from tailrace.streaming import StatusUpdate, TaskState
from tailrace.streaming.a2a.models import A2AModel
from tailrace.streaming.a2a.requests import TaskPushNotificationConfig
from tailrace.streaming.task.task_record import TaskRecord
from tailrace.wrappers import ConfigurationError, StoreError


async def test_what_was_committed_is_there_after_a_restart(store_url: str) -> None:
    async with open_store(store_url) as store:
        await store.commit([write("t", 1, state=TaskState.SUBMITTED)])
        await store.commit([write("t", 2, 3)])
    async with open_store(store_url) as store:
        stored = await store.load_task("t", "me")
        assert stored is not None
        assert stored.number == 1
        assert stored.task == task("t", TaskState.SUBMITTED)
        assert await numbers_of(store, "t") == [1, 2, 3]
        assert [event.state for event in await store.load_events("t", 0)] == [TaskState.SUBMITTED, None, None]
        assert [event.body for event in await store.load_events("t", 2)] == [b'{"n":3}']
        assert [event.number for event in await store.load_events("t", 0, limit=2)] == [1, 2]


async def test_events_are_given_up_to_a_number_of_bytes_and_always_one(store_url: str) -> None:
    async with open_store(store_url) as store:
        await store.commit([write("t", 1, 2, 3)])  # 7 bytes each
        for max_bytes, expected in ((1, [1]), (14, [1, 2]), (20, [1, 2]), (21, [1, 2, 3])):
            events = await store.load_events("t", 0, max_bytes=max_bytes)
            assert [event.number for event in events] == expected
        assert await store.load_events("t", 3, max_bytes=1) == []


async def test_a_task_is_brought_up_to_date_in_place(store_url: str) -> None:
    async with open_store(store_url) as store:
        first = [write("t", 1, state=TaskState.SUBMITTED), write("u", 1, state=TaskState.SUBMITTED)]
        await store.commit(first)
        await store.commit([write("t", 2, state=TaskState.COMPLETED)])
        stored = await store.load_task("t", "me")
        assert stored is not None
        assert (stored.number, stored.task.status.state) == (2, TaskState.COMPLETED)
        assert await store.load_unfinished() == [("u", "me")]


async def test_a_snapshot_that_the_last_event_contains_is_not_encoded_again(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = TaskRecord.create(user_message('Ä "quoted"\u2028 text\\ {"task":'))
    event, snapshot = record.begin()
    later = record.apply(StatusUpdate(TaskState.COMPLETED))
    async with open_store(store_url) as store:
        with monkeypatch.context() as patch:
            patch.delattr(A2AModel, "to_json")
            await store.commit([TaskWrite(record.id, "me", record.context_id, (event,), snapshot)])
        stored = await store.load_task(record.id, "me")
        assert stored is not None
        assert (stored.number, stored.task) == (1, snapshot)
        await store.commit([TaskWrite(record.id, "me", record.context_id, (later,), record.snapshot())])
        stored = await store.load_task(record.id, "me")
        assert stored is not None
        assert (stored.number, stored.task) == (2, record.snapshot())


async def test_only_the_owner_finds_a_task(store_url: str) -> None:
    async with open_store(store_url) as store:
        await store.commit([write("t", 1, state=TaskState.SUBMITTED)])
        assert await store.load_task("t", "somebody") is None
        assert await store.load_task("nothing", "me") is None
        assert await store.task_id_exists("t")
        assert not await store.task_id_exists("nothing")


async def test_a_conversation_is_kept_in_order_and_apart_from_others(store_url: str) -> None:
    async with open_store(store_url) as store:
        await store.commit([TaskWrite("t", "me", "c", (), None, (user_message("one"), user_message("two")))])
        await store.commit([TaskWrite("u", "me", "c", (), None, (user_message("three"),))])
        await store.commit([TaskWrite("v", "you", "c", (), None, (user_message("yours"),))])
        await store.commit([TaskWrite("w", "me", "other", (), None, (user_message("elsewhere"),))])
        assert await store.load_conversation("c", "me", 10) == [
            user_message("one"),
            user_message("two"),
            user_message("three"),
        ]
        assert await store.load_conversation("c", "me", 2) == [user_message("two"), user_message("three")]
        assert await store.load_conversation("c", "you", 10) == [user_message("yours")]


async def test_a_batch_that_fails_leaves_nothing_behind_and_the_next_one_works(store_url: str) -> None:
    async with open_store(store_url) as store:
        await store.commit([write("t", 1, state=TaskState.SUBMITTED)])
        with pytest.raises(StoreError, match="cannot write") as caught:
            await store.commit([write("t", 2), write("u", 1), write("t", 1)])  # event 1 of t exists already
        assert not caught.value.temporary
        assert await numbers_of(store, "t") == [1]
        assert await numbers_of(store, "u") == []
        await store.commit([write("t", 2)])
        assert await numbers_of(store, "t") == [1, 2]


async def test_tasks_are_listed_from_the_newest_on_page_by_page(store_url: str) -> None:
    async with open_store(store_url) as store:
        at = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 2, 3)]
        for name, updated in zip("abBc", at, strict=True):
            await store.commit([write(name, 1, state=TaskState.COMPLETED, updated=updated)])
        await store.commit([write("x", 1, state=TaskState.WORKING, owner="you")])

        async def names(wanted: TaskFilter, after: ListPosition | None = None) -> list[str]:
            return [each.id for _, each in (await store.list_tasks("me", wanted, after=after, limit=2))[0]]

        assert await names(TaskFilter()) == ["c", "b"]
        assert await names(TaskFilter(), ListPosition(at[1], "b")) == ["B", "a"]
        # The same moment in another time zone.
        since = at[3].astimezone(timezone(timedelta(hours=5)))
        assert await names(TaskFilter(since=since)) == ["c"]
        assert await names(TaskFilter(state=TaskState.WORKING)) == []
        (position, _), *_ = (await store.list_tasks("me", TaskFilter(), after=None, limit=1))[0]
        assert position == ListPosition(at[3], "c")


async def test_lists_do_not_have_unlisted_tasks(store_url: str) -> None:
    async with open_store(store_url) as store:
        hidden = structs.replace(write("h", 1, state=TaskState.COMPLETED), is_listed=False)
        await store.commit([write("a", 1, state=TaskState.COMPLETED), hidden])
        for wanted in (TaskFilter(), TaskFilter(context_id="c"), TaskFilter(state=TaskState.COMPLETED)):
            page = await store.list_tasks("me", wanted, after=None, limit=9)
            assert ([each.id for _, each in page.tasks], page.total) == (["a"], 1)
        assert await store.load_task("h", "me") is not None
        assert set(await store.list_conversation_tasks("c", "me", 9)) == {"a", "h"}


async def test_a_page_of_large_tasks_has_fewer_of_them(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "MAX_PAGE_BYTES", 25_000)
    async with open_store(store_url) as store:
        for day in range(1, 8):
            earlier_messages = [user_message("x" * (4_500 if day < 7 else 45_000))]
            large = task(f"t{day}", TaskState.COMPLETED, updated=datetime(2026, 1, day, tzinfo=UTC))
            large = large.model_copy(update={"history": tuple(earlier_messages)})
            await store.commit([TaskWrite(f"t{day}", "me", "c", write(f"t{day}", 1).events, large)])
        pages: list[list[str]] = []
        after: ListPosition | None = None
        while not pages or after is not None:
            page = await store.list_tasks("me", TaskFilter(), after=after, limit=5)
            pages.append([position.id for position, _ in page.tasks])
            assert page.total == 7
            after = page.tasks[-1][0] if page.has_more else None
        assert pages == [["t7"], ["t6", "t5"], ["t4", "t3"], ["t2", "t1"]]


async def test_of_a_long_conversation_the_newest_messages_are_loaded(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "MAX_CONVERSATION_BYTES", 25_000)
    async with open_store(store_url) as store:
        messages = [user_message(f"{number}" * 4_500) for number in range(4)]
        await store.commit(
            [TaskWrite("t", "me", "c", write("t", 1).events, task("t", TaskState.WORKING), messages)]
        )
        assert await store.load_conversation("c", "me", 10) == messages[-2:]
        assert await store.load_task_messages("t", "me") == messages[-2:]
        monkeypatch.setattr(stores, "MAX_CONVERSATION_BYTES", 10)
        assert await store.load_conversation("c", "me", 10) == messages[-1:]


async def test_a_deleted_task_takes_everything_with_it(store_url: str) -> None:
    async with open_store(store_url) as store:
        config = TaskPushNotificationConfig(task_id="t", id="w", url="https://example.com/")
        webhooks = (PushConfig("me", "1.0", config),)
        write_all = TaskWrite(
            "t", "me", "c", write("t", 1).events, task("t"), (user_message("one"),), webhooks=webhooks
        )
        await store.commit([write_all, write("u", 1, state=TaskState.WORKING)])
        assert not await store.delete_task("t", "somebody")
        assert await store.load_push_configs("t", "me") == list(webhooks)
        assert await store.delete_task("t", "me")
        assert not await store.delete_task("t", "me")
        assert await store.load_task("t", "me") is None
        assert await numbers_of(store, "t") == []
        assert await store.load_conversation("c", "me", 10) == []
        assert await store.load_push_configs("t", "me") == []
        assert await numbers_of(store, "u") == [1]


async def test_webhooks_are_in_the_order_of_their_ids_on_every_database(store_url: str) -> None:
    async with open_store(store_url) as store:
        for name in ("b", "A", "ä", "a", "_", "Z"):
            config = TaskPushNotificationConfig(task_id="t", id=name, url="https://example.com/")
            await store.put_push_config(PushConfig("me", "1.0", config))
        names = [each.config.id for each in await store.load_push_configs("t", "me")]
        assert names == sorted(names)
        await store.delete_push_config("t", "b")
        await store.mark_delivered("t", "a", 7)
        delivered = {each.config.id: each.last_delivered for each in await store.load_push_configs("t", "me")}
        assert delivered == {"A": 0, "ä": 0, "a": 7, "_": 0, "Z": 0}


@given(names=st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), unique=True, max_size=5))
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_any_text_can_be_an_id(store_url: str, names: list[str]) -> None:
    async with open_store(store_url) as store:
        for name in names:
            await store.delete_task(name, name)
            state = TaskState.SUBMITTED
            await store.commit([TaskWrite(name, name, name, write(name, 1).events, task(name, state))])
            assert await store.load_task(name, name) is not None
            assert await numbers_of(store, name) == [1]
            listed, *_ = await store.list_tasks(name, TaskFilter(context_id=name), after=None, limit=9)
            assert [(position.id, found.id) for position, found in listed] == [(name, name)]
            await store.delete_task(name, name)


@pytest.mark.parametrize("name", ["a\0b", "\\0", "\\\0", "a\\\\0", "\\", "\0\\"])
async def test_ids_that_a_database_does_not_take_as_they_are(store_url: str, name: str) -> None:
    async with open_store(store_url) as store:
        await store.commit([write(name, 1, state=TaskState.SUBMITTED)])
        assert await store.load_unfinished() == [(name, "me")]


async def test_a_store_in_memory_needs_no_file() -> None:
    for url in ("sqlite://", "sqlite:///:memory:"):
        async with open_store(url) as store:
            await store.commit([write("t", 1, state=TaskState.SUBMITTED)])
            assert await store.load_task("t", "me") is not None


@pytest.mark.parametrize("url", ["nonsense", "mysql://host/db", "", "postgresql://u:secret@host:port/db"])
def test_a_url_that_cannot_be_used_is_refused_by_name(url: str) -> None:
    with pytest.raises(ConfigurationError, match="TAILRACE_STORE") as caught:
        Store(url)
    assert "secret" not in str(caught.value)


async def test_a_store_that_another_server_has_open_is_refused(store_url: str) -> None:
    first, second = Store(store_url), Store(store_url)
    await first.open()
    with pytest.raises(StoreError, match="in use by another process"):
        await second.open()
    await second.close()
    await first.commit([write("t", 1, state=TaskState.SUBMITTED)])
    await first.close()
    await second.open()
    assert await second.load_task("t", "me") is not None
    await second.close()


async def test_a_closed_store_raises_an_error(store_url: str) -> None:
    store = Store(store_url)
    for _ in range(2):
        with pytest.raises(StoreError, match="closed"):
            await store.commit([write("t", 1)])
        with pytest.raises(StoreError, match="closed"):
            await store.load_task("t", "me")
        await store.open()
        await store.close()
        await store.close()

"""The ledger, on SQLite and PostgreSQL."""

from datetime import UTC, date, datetime, timedelta

import msgspec

from support.store_objects import LONG_AGO, open_store, write
from tailrace.server.store.store import AttemptState, Retention, Store, TaskWrite, UsageRecord
from tailrace.server.store.usage_store import GROUPS, UsageFilter, UsageSum, milliseconds
from tailrace.streaming import TaskState

ALWAYS = UsageFilter(0, 2**62)
NOON = datetime(2026, 11, 26, 12, tzinfo=UTC)


def attempt(number: int = 1, ended: datetime = NOON, **fields: object) -> UsageRecord:
    at = milliseconds(ended)
    record = UsageRecord(
        1, number, "ann", "a", "openai", "m", AttemptState.FINAL, at, at, "m-1", 10, 4, 20, 5, 7
    )
    return msgspec.structs.replace(record, **fields)


def using(write: TaskWrite, *attempts: UsageRecord) -> TaskWrite:
    return msgspec.structs.replace(write, usage=attempts)


async def total(store: Store, usage_filter: UsageFilter = ALWAYS) -> UsageSum | None:
    return next(iter(await store.usage.sums(usage_filter, (), 1)), None)


async def test_an_attempt_is_counted_once(store_url: str) -> None:
    async with open_store(store_url) as store:
        await store.commit([using(write("t", 1), attempt(1))])
        await store.commit([using(write("t", 2), attempt(1), attempt(2)), using(write("u", 1), attempt(1))])
        assert await total(store) == UsageSum((), 3, 0, 0, 30, 12, 60, 15, 21)
        assert await store.usage.last_attempt("t", 1) == attempt(2)
        assert await store.usage.last_attempt("t", 2) is await store.usage.last_attempt("v", 1) is None


async def test_an_attempt_that_another_one_attached_to_is_not_counted(store_url: str) -> None:
    async with open_store(store_url) as store:
        cut = attempt(1, state=AttemptState.CUT, chunks=30)
        await store.commit([using(write("t", 1), cut)])
        await store.commit([using(write("t", 2), msgspec.structs.replace(cut, state=AttemptState.ATTACHED))])
        await store.commit([using(write("t", 3), attempt(2))])
        assert await total(store) == UsageSum((), 1, 0, 0, 10, 4, 20, 5, 7)
        assert [each.tokens + each.missing_tokens for each in await store.usage.spent(None, 0, 2**62)] == [30]
        await store.commit([using(write("t", 4), cut)])
        assert [each.tokens + each.missing_tokens for each in await store.usage.spent(None, 0, 2**62)] == [70]


async def test_attempts_are_grouped_and_filtered(store_url: str) -> None:
    async with open_store(store_url) as store:
        night = datetime(2026, 11, 26, 23, 59, 59, 999_000, tzinfo=UTC)
        attempts = [
            attempt(1),
            attempt(2, night, caller="bob", state=AttemptState.CUT, cost=None),
            attempt(3, night + timedelta(milliseconds=1), model="\0 \\0", agent="Ä", cost=None),
            attempt(4, state=AttemptState.ATTACHED),
            attempt(5, state=AttemptState.LOST, input_tokens=0, output_tokens=0, cost=None),
        ]
        await store.commit([using(write("t", 1), *attempts)])
        days = await store.usage.sums(ALWAYS, ("day",), 9)
        assert [(each.group, each.attempts) for each in days] == [
            ((str(date(2026, 11, 26)),), 3),
            ((str(date(2026, 11, 27)),), 1),
        ]
        found = await store.usage.sums(ALWAYS, GROUPS, 9)
        assert ("2026-11-27", "ann", "Ä", "openai", "\0 \\0", "final") in [each.group for each in found]
        whole = await total(store)
        assert whole is not None
        assert (whole.attempts, whole.incomplete_attempts, whole.unpriced_attempts, whole.cost) == (
            4,
            2,
            2,
            7,
        )
        for usage_filter, count in (
            (UsageFilter(0, 2**62, caller="bob"), 1),
            (UsageFilter(0, 2**62, caller=""), 0),
            (UsageFilter(0, 2**62, model="\0 \\0", agent="Ä"), 1),
            (UsageFilter(milliseconds(night), milliseconds(night) + 1), 1),
            (UsageFilter(0, milliseconds(NOON)), 0),
        ):
            one = await total(store, usage_filter)
            assert (one.attempts if one else 0) == count
        assert len(await store.usage.sums(ALWAYS, ("model", "state"), 1)) == 2  # one more than the limit


async def test_attempts_outlive_their_tasks_without_their_ids(store_url: str) -> None:
    async with open_store(store_url, Retention(tasks=60.0)) as store:
        done = TaskState.COMPLETED
        await store.commit([using(write("t", 1, state=done), attempt(1))])
        await store.commit([using(write("u", 1, state=done, updated=LONG_AGO), attempt(1))])
        assert await store.delete_task("t", "me")
        while await store.drop_expired():
            pass
        assert await store.load_task("u", "me") is None
        assert await store.usage.last_attempt("t", 1) is await store.usage.last_attempt("u", 1) is None
        whole = await total(store)
        assert whole is not None
        assert whole.attempts == 2


async def test_attempts_expire(store_url: str) -> None:
    async with open_store(store_url, Retention(usage=60.0)) as store:
        old = [attempt(number, LONG_AGO) for number in range(1, 1001)]
        await store.commit([using(write("t", 1), *old, attempt(1001, datetime.now(UTC)))])
        while await store.drop_expired():
            pass
        whole = await total(store)
        assert whole is not None
        assert whole.attempts == 1

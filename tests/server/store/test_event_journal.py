"""SQLite's journal: an event is in it or in its table, is read like a table row, and is never lost."""

import sqlite3
from itertools import cycle, islice
from pathlib import Path

import anyio
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.store_objects import first_kept, numbers_of, open_store, write
from tailrace.server.store.event_journal import MOVE_AFTER_WRITES, TAIL_BYTES, Journal
from tailrace.server.store.event_rows import Row
from tailrace.server.store.store import EventsDropped, Retention, TaskWrite
from tailrace.streaming import Event, TaskState


def a_database() -> sqlite3.Connection:
    driver = sqlite3.connect(":memory:")
    driver.execute("CREATE TABLE events (task_id, number, body, state, PRIMARY KEY (task_id, number))")
    driver.execute("CREATE TABLE journal (position INTEGER PRIMARY KEY, body BLOB)")
    driver.commit()
    return driver


def row(task: str, number: int, size: int = 10, state: str | None = None) -> Row:
    return task, number, b"%d " % number * size, state


def in_table(driver: sqlite3.Connection, task: str) -> list[Row]:
    query = "SELECT task_id, number, body, state FROM events WHERE task_id = ? ORDER BY number"
    return driver.execute(query, (task,)).fetchall()


def known(journal: Journal, driver: sqlite3.Connection, task: str) -> list[Row]:
    """Return all events of a task: the rows of its table, then the journal entries that follow."""
    found = in_table(driver, task)
    last = found[-1][1] if found else 0
    return found + [each for each in journal.tail(task) if each[1] > last]


def test_the_first_event_of_a_task_is_in_the_table_and_those_that_follow_are_in_the_journal():
    journal, driver = Journal(), a_database()
    for number in range(1, 4):
        journal.write(driver, [row("a", number), row("b", number)])
    assert [len(in_table(driver, task)) for task in "ab"] == [1, 1]
    assert [each[1] for each in journal.tail("a")] == [2, 3]
    assert driver.execute("SELECT count(*) FROM journal").fetchone() == (2,)


def test_a_page_full_of_events_moves_into_the_table_together():
    journal, driver = Journal(), a_database()
    size = TAIL_BYTES // 30
    number = 0
    while len(in_table(driver, "a")) <= 1:
        number += 1
        journal.write(driver, [row("a", number, size // 4)])
    assert number > 10
    assert in_table(driver, "a") == [row("a", each, size // 4) for each in range(1, number + 1)]
    assert journal.tail("a") == []


def test_what_else_is_written_of_a_task_finds_its_events_in_the_table():
    journal, driver = Journal(), a_database()
    for number in range(1, 6):
        journal.write(driver, [row("a", number), row("b", number)])
    journal.write(driver, [row("a", 6, state="TASK_STATE_COMPLETED")], {"a"})
    assert [each[1] for each in in_table(driver, "a")] == [1, 2, 3, 4, 5, 6]
    assert [each[1] for each in in_table(driver, "b")] == [1]


def test_an_event_that_is_there_already_is_refused():
    journal, driver = Journal(), a_database()
    journal.write(driver, [row("a", 1), row("a", 2)])
    driver.commit()
    with pytest.raises(sqlite3.IntegrityError):
        journal.write(driver, [row("a", 1)])


def test_old_rows_are_dropped_when_what_is_in_them_has_moved():
    journal, driver = Journal(), a_database()
    journal.write(driver, [row("quiet", 1), row("quiet", 2)])
    number = 0
    for _ in range(3 * MOVE_AFTER_WRITES):
        number += 1
        journal.write(driver, [row("busy", number, 1)])
    [count] = driver.execute("SELECT count(*) FROM journal").fetchone()
    assert count <= 2 * MOVE_AFTER_WRITES
    assert [each[1] for each in in_table(driver, "quiet")] == [1, 2]
    assert [each[1] for each in known(journal, driver, "busy")] == list(range(1, number + 1))


class Many:
    """A journal of many tasks, a few of which are written in each transaction.

    Attributes:
        kept: All persisted events, by task.
    """

    def __init__(self, tasks: int, at_once: int) -> None:
        self.driver = a_database()
        self.journal = Journal()
        self.kept: dict[str, list[Row]] = {f"t{at}": [] for at in range(tasks)}
        self._names = cycle(self.kept)
        self._at_once = at_once

    def write(self, *, is_kept: bool = True) -> list[Row]:
        """Write an event each for the next tasks; return the events of other tasks that moved into the table."""
        names = list(islice(self._names, self._at_once))
        rows = [row(name, len(self.kept[name]) + 1, 1) for name in names]
        [last] = self.driver.execute("SELECT coalesce(max(rowid), 0) FROM events").fetchone()
        self.journal.write(self.driver, rows)
        query = "SELECT task_id, number, body, state FROM events WHERE rowid > ?"
        moved = [each for each in self.driver.execute(query, (last,)) if each[0] not in names]
        if is_kept:
            self.driver.commit()
            for each in rows:
                self.kept[each[0]].append(each)
        else:
            self.driver.rollback()
            self.journal.reload_after_rollback(self.driver)
        return moved

    def write_into(self, step: int) -> None:
        """Write until rows begin to move into the table, then so many times more."""
        while not self.write():
            pass
        for _ in range(step):
            self.write()

    def positions(self) -> list[int]:
        """Return the positions of the journal's rows."""
        return [at for (at,) in self.driver.execute("SELECT position FROM journal ORDER BY position")]

    def check(self) -> None:
        """Assert that all persisted events can be read, also after a restart."""
        started = Journal()
        started.load(self.driver)
        for name, rows in self.kept.items():
            assert known(self.journal, self.driver, name) == rows
            assert known(started, self.driver, name) == rows


@pytest.mark.parametrize(("tasks", "at_once"), [(400, 5), (400, 1), (1200, 5), (40, 5)])
def test_with_each_write_a_little_of_what_is_old_moves_however_many_tasks_have_some(tasks: int, at_once: int):
    many = Many(tasks, at_once)
    moved_of: set[str] = set()
    before: list[int] = []
    for _ in range(6 * MOVE_AFTER_WRITES):
        moved = {each[0] for each in many.write()}
        assert len(moved) <= 10
        moved_of |= moved
        before = many.positions()
        assert len(before) <= 2 * MOVE_AFTER_WRITES
    assert len(moved_of) > tasks / 2
    assert before == list(range(2 * MOVE_AFTER_WRITES))  # every row was used
    many.check()


@pytest.mark.parametrize(("tasks", "failing"), [(4000, 2), (400, 2), (400, 20), (400, 150), (400, 1000)])
def test_the_journal_keeps_within_its_bound_and_loses_nothing_though_transactions_fail(
    tasks: int, failing: int
):
    many = Many(tasks, 5)
    for number in range(1, 8 * MOVE_AFTER_WRITES):
        many.write(is_kept=number % failing != 0)
        assert len(many.positions()) <= 2 * MOVE_AFTER_WRITES
        if number % (2 * MOVE_AFTER_WRITES) == 0:
            many.check()
    many.check()


def test_events_that_an_earlier_version_left_in_the_journal_are_moved():
    journal, driver = Journal(), a_database()
    driver.execute("INSERT INTO events VALUES ('a', 1, x'31', NULL)")
    for position, number in ((2047, 2), (2048, 3), (2049, 4)):
        rows = [row("a", number)]
        driver.execute("INSERT INTO journal VALUES (?, ?)", (position, msgspec.msgpack.encode(rows)))
    journal.empty(driver)
    assert in_table(driver, "a")[1:] == [row("a", number) for number in (2, 3, 4)]
    assert driver.execute("SELECT count(*) FROM journal").fetchone() == (0,)


@pytest.mark.parametrize(("at_once", "pages"), [(1, 2), (10, 3)])
def test_a_transaction_changes_few_pages(tmp_path: Path, at_once: int, pages: float):
    driver = sqlite3.connect(tmp_path / "tasks.db")
    for pragma in ("journal_mode=WAL", "secure_delete=ON", "wal_autocheckpoint=0"):
        driver.execute(f"PRAGMA {pragma}")
    driver.execute("CREATE TABLE events (task_id, number, body, state, PRIMARY KEY (task_id, number))")
    driver.execute("CREATE TABLE journal (position INTEGER PRIMARY KEY, body BLOB)")
    driver.commit()
    journal = Journal()
    numbers = dict.fromkeys((f"t{at}" for at in range(200)), 0)
    names = cycle(numbers)
    log = tmp_path / "tasks.db-wal"
    sizes: list[int] = []
    for _ in range(4 * MOVE_AFTER_WRITES):
        rows: list[Row] = []
        for name in islice(names, at_once):
            numbers[name] += 1
            rows.append((name, numbers[name], bytes(300), None))
        journal.write(driver, rows)
        driver.commit()
        sizes.append(log.stat().st_size)
    driver.close()
    written = (sizes[-1] - sizes[2 * MOVE_AFTER_WRITES]) / 4096 / (2 * MOVE_AFTER_WRITES)
    assert written < pages


MIDDLE = [0, 1, 50, 98, 99, 100, 101, 110, 140]
"""Number of writes after rows of 400 tasks begin to move: during the move and the deletion that follows."""


@pytest.mark.parametrize("step", MIDDLE)
def test_a_program_that_ends_while_what_is_old_moves_loses_nothing(step: int):
    many = Many(400, 5)
    many.write_into(step)
    many.journal = Journal()
    many.journal.load(many.driver)
    many.check()
    for _ in range(2 * MOVE_AFTER_WRITES):
        many.write()
    many.check()
    many.write_into(step)
    many.journal = Journal()
    many.journal.empty(many.driver)
    for name, rows in many.kept.items():
        assert in_table(many.driver, name) == rows
    many.write_into(step)
    many.check()


@pytest.mark.parametrize("step", MIDDLE)
def test_a_transaction_that_comes_to_nothing_while_what_is_old_moves_loses_nothing(step: int):
    many = Many(400, 5)
    many.write_into(step)
    many.write(is_kept=False)
    for _ in range(8):
        many.check()
        for _ in range(40):
            many.write()
    many.check()


def test_what_is_written_else_of_a_task_while_what_is_old_moves_is_in_the_table():
    many = Many(400, 5)
    many.write_into(50)
    for name, rows in many.kept.items():
        rows.append(row(name, len(rows) + 1, state="TASK_STATE_COMPLETED"))
        many.journal.write(many.driver, rows[-1:], {name})
        assert in_table(many.driver, name) == rows
    assert all(many.journal.tail(name) == [] for name in many.kept)


def test_a_transaction_that_came_to_nothing_leaves_nothing():
    journal, driver = Journal(), a_database()
    journal.write(driver, [row("a", 1), row("a", 2)])
    driver.commit()
    journal.write(driver, [row("a", 3), row("b", 1)])
    driver.rollback()
    journal.reload_after_rollback(driver)
    assert known(journal, driver, "a") == [row("a", 1), row("a", 2)]
    assert known(journal, driver, "b") == []
    journal.write(driver, [row("a", 3), row("a", 4), row("b", 1)])
    assert known(journal, driver, "a") == [row("a", number) for number in range(1, 5)]


def no_journal(_action: int, table: str | None, _2: str | None, _3: str | None, _4: str | None) -> int:
    """Make SQLite refuse every operation on the journal."""
    return sqlite3.SQLITE_DENY if table == "journal" else sqlite3.SQLITE_OK


def test_nothing_is_lost_when_the_journal_cannot_be_read_for_once():
    journal, driver = Journal(), a_database()
    journal.write(driver, [row("quiet", 1), row("quiet", 2), row("busy", 1)])
    driver.commit()
    journal.write(driver, [row("quiet", 3)])
    driver.rollback()
    driver.set_authorizer(no_journal)
    journal.reload_after_rollback(driver)
    with pytest.raises(sqlite3.DatabaseError):
        journal.write(driver, [row("quiet", 3)])
    driver.rollback()
    journal.reload_after_rollback(driver)
    assert not journal.is_known
    driver.set_authorizer(None)
    journal.write(driver, [row("quiet", 3)])
    assert journal.is_known
    for number in range(2, 3 * MOVE_AFTER_WRITES):  # until the journal rows of "quiet" are deleted
        journal.write(driver, [row("busy", number, 1)])
    assert in_table(driver, "quiet") == [row("quiet", number) for number in range(1, 4)]


async def test_what_was_deleted_or_dropped_does_not_come_back(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'tasks.db'}"
    async with open_store(url, Retention(events=60)) as store:
        for name in ("deleted", "dropped"):
            await store.commit([write(name, 1, state=TaskState.WORKING)])
            for number in range(2, 300):  # enough that some of them never were in the journal
                event = Event(number, b'{"text": "%s"}' % (b"x" * 300), None)
                await store.commit([TaskWrite(name, "me", "c", (event,))])
            await store.commit([write(name, 300, state=TaskState.COMPLETED)])
        assert await store.delete_task("deleted", "me")
        while await store.drop_expired():
            pass
    async with open_store(url) as store:
        assert await numbers_of(store, "deleted") == []
        assert await first_kept(store, "dropped") == 301
        with pytest.raises(EventsDropped):
            await store.load_events("dropped", 5)


@pytest.mark.parametrize("state", [None, TaskState.COMPLETED], ids=["an event", "the end"])
async def test_persisted_events_are_readable_while_another_program_locks_the_database(
    tmp_path: Path, state: TaskState | None
):
    file = tmp_path / "tasks.db"
    async with open_store(f"sqlite:///{file}") as store, anyio.create_task_group() as group:
        await store.commit([write("t", 1, state=TaskState.WORKING)])
        for number in range(2, 12):
            await store.commit([write("t", number)])
        other = sqlite3.connect(file, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        group.start_soon(store.commit, [write("t", 12, state=state)])
        await anyio.wait_all_tasks_blocked()  # until the write waits for the lock
        for after in range(11):
            assert await numbers_of(store, "t", after) == list(range(after + 1, 12))
        other.execute("ROLLBACK")
        other.close()
    async with open_store(f"sqlite:///{file}") as store:
        assert await numbers_of(store, "t") == list(range(1, 13))


STEPS = st.lists(
    st.tuples(
        st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([1, 300, 1500])), max_size=5),
        st.sets(st.sampled_from("abc"), max_size=1),
        st.sampled_from(["kept", "kept", "kept", "lost", "killed", "dropped"]),
    ),
    max_size=40,
)


@pytest.mark.no_cover
@given(STEPS)
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_whatever_happens_what_was_kept_is_read_whole_and_in_order(
    steps: list[tuple[list[tuple[str, int]], set[str], str]],
):
    journal, driver = Journal(), a_database()
    kept: dict[str, list[Row]] = {task: [] for task in "abc"}
    for made, tasks, outcome in steps:
        rows: list[Row] = []
        for task, size in made:
            last = kept[task][-1][1] if kept[task] else 0
            number = last + sum(each[0] == task for each in rows) + 1
            rows.append(row(task, number, size))
        journal.write(driver, rows, tasks)
        if outcome == "lost":
            driver.rollback()
            journal.reload_after_rollback(driver)
        else:
            driver.commit()
            for each in rows:
                kept[each[0]].append(each)
        if outcome == "dropped":  # the oldest first, after the end of a task
            for task in tasks:
                kept[task] = kept[task][len(kept[task]) // 2 :] if len(kept[task]) > 3 else kept[task]
                first = kept[task][0][1] if kept[task] else 0
                driver.execute("DELETE FROM events WHERE task_id = ? AND number < ?", (task, first))
            driver.commit()
            journal.reload_after_rollback(driver)
        if outcome == "killed":  # then restarted
            journal = Journal()
            journal.empty(driver)
            driver.commit()
        for task in "abc":
            assert known(journal, driver, task) == kept[task]
            if task in tasks and outcome == "kept":
                assert in_table(driver, task) == kept[task]


async def test_a_store_that_was_not_closed_has_everything_that_was_kept(tmp_path: Path):
    file = tmp_path / "tasks.db"
    async with open_store(f"sqlite:///{file}") as store:
        for number in range(1, 30):
            event = Event(number, b'{"n":%d}' % number, TaskState.WORKING if number == 1 else None)
            await store.commit([TaskWrite("t", "me", "c", (event,))])
        assert [event.number for event in await store.load_events("t", 0)] == list(range(1, 30))
        assert [event.number for event in await store.load_events("t", 20, limit=4)] == [21, 22, 23, 24]
        # The files that a killed process leaves: database and log.
        for end in ("", "-wal"):
            (tmp_path / f"left.db{end}").write_bytes((tmp_path / f"tasks.db{end}").read_bytes())
    with sqlite3.connect(tmp_path / "left.db") as left:
        assert left.execute("SELECT count(*) FROM journal").fetchone() > (20,)
    left.close()
    async with open_store(f"sqlite:///{tmp_path / 'left.db'}") as store:
        assert [event.body for event in await store.load_events("t", 27)] == [b'{"n":28}', b'{"n":29}']
    for name in ("left.db", "tasks.db"):  # closed normally
        with sqlite3.connect(tmp_path / name) as closed:
            assert closed.execute("SELECT count(*), max(number) FROM events").fetchone() == (29, 29)
            assert closed.execute("SELECT count(*) FROM journal").fetchone() == (0,)
        closed.close()

"""Store failures: full disk, locks, damage, lost connections; clear errors, no partial writes, and recovery."""

import asyncio
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from support.missing_packages import run_without
from support.postgres import PostgresServer
from support.proxy import CuttingProxy
from support.store_objects import numbers_of, open_store, write
from tailrace.server.store.store import Store, TaskWrite
from tailrace.server.store.writer import GroupWriter
from tailrace.streaming import Event, TaskState
from tailrace.wrappers import ConfigurationError, StoreError


def path_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


def large(task_id: str, number: int) -> TaskWrite:
    return TaskWrite(task_id, "me", "c", (Event(number, b"x" * 1_000_000),))


# --- a full disk ------------------------------------------------------------------------------------------------

FULL_DISK = """
import resource, sys
import anyio
from support.store_objects import numbers_of, write
from tailrace.server.store.store import Store, TaskWrite
from tailrace.server.store.writer import GroupWriter
from tailrace.streaming import Event
from tailrace.wrappers import StoreError

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

async def main(url):
    store = Store(url)
    await store.open()
    await store.commit([write("t", 1)])
    limit(400_000)  # no file may grow beyond it, as on a disk that is full
    events = (Event(2, b"x" * 600_000), Event(3, b"y"))
    try:
        await store.commit([write("u", 1), TaskWrite("t", "me", "c", events)])
    except StoreError as error:
        print(error.temporary, error)
    print(await numbers_of(store, "t"), await numbers_of(store, "u"))
    # What fits is kept still, or again, without a restart.
    await store.commit([write("u", 1)])
    print(await numbers_of(store, "u"))

    # The writer gives up what cannot be kept, and says so; then there is room, and it goes on.
    writer = GroupWriter(store, retry_delays=(0, 0))
    told = []
    async with anyio.create_task_group() as group:
        group.start_soon(writer.run)
        for size, bound in ((600_000, 400_000), (600_000, resource.RLIM_INFINITY)):
            limit(bound)
            kept = anyio.Event()
            def settle(is_kept):
                told.append(is_kept)
                kept.set()
            each = TaskWrite("t", "me", "c", (Event(2, b"x" * size),))
            writer.add_write(each, lambda events: settle(True), lambda error: settle(False))
            await kept.wait()
        writer.close()
    print(told, await numbers_of(store, "t"))
    await store.close()
    store = Store(url)
    await store.open()
    print(await numbers_of(store, "t"), await numbers_of(store, "u"))
    await store.close()

anyio.run(main, sys.argv[1])
"""


async def test_a_disk_that_is_full_keeps_nothing_of_a_batch_and_everything_once_there_is_room(
    sqlite_url: str,
) -> None:
    tests = str(Path(__file__).parents[2])
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {tests!r})\n{FULL_DISK}", sqlite_url],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    error, *lines = done.stdout.splitlines()
    assert error.startswith("True cannot write to the store: ")
    assert "disk" in error
    assert lines == ["[1] []", "[1]", "[False, True] [1, 2]", "[1, 2] [1]"]


async def test_a_database_at_its_maximum_size_is_reported_as_full(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tailrace.server.store import sqlite_file

    set_pragmas: Callable[[sqlite3.Connection, object], None] = vars(sqlite_file)["_set_pragmas"]

    def set_bound(connection: sqlite3.Connection, record: object) -> None:
        set_pragmas(connection, record)
        connection.execute("PRAGMA max_page_count=100")

    monkeypatch.setattr(sqlite_file, "_set_pragmas", set_bound)
    async with open_store(sqlite_url) as store:
        await store.commit([write("t", 1)])
        with pytest.raises(StoreError, match=r"cannot write to the store: the disk is full") as caught:
            await store.commit([write("t", 2), large("t", 3)])
        assert caught.value.temporary
        assert await numbers_of(store, "t") == [1]
        await store.commit([write("t", 2)])
        assert await numbers_of(store, "t") == [1, 2]


# --- locks ------------------------------------------------------------------------------------------------------


async def test_a_locked_database_is_written_to_once_it_is_unlocked(sqlite_url: str) -> None:
    async with open_store(f"{sqlite_url}?timeout=0.05") as store:
        await store.commit([write("t", 1)])
        other = sqlite3.connect(path_of(sqlite_url), isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="another program has the database locked") as caught:
            await store.commit([write("t", 2)])
        assert caught.value.temporary
        assert await numbers_of(store, "t") == [1]  # reads still succeed

        outcomes: list[StoreError | None] = []

        writer = GroupWriter(store, retry_delays=(0,) * 1000)
        async with anyio.create_task_group() as group:
            writer.add_write(write("t", 2), lambda _events: outcomes.append(None), outcomes.append)
            writer.close()
            group.start_soon(writer.run)
            # Another attempt is in progress, and fails, while this one waits.
            with pytest.raises(StoreError, match="locked"):
                await store.commit([write("u", 1)])
            assert outcomes == []
            other.execute("ROLLBACK")
        other.close()
        assert outcomes == [None]
        assert await numbers_of(store, "t") == [1, 2]


async def test_a_locked_table_is_written_to_once_it_is_unlocked(
    postgres: PostgresServer, postgresql_url: str
) -> None:
    async with open_store(f"{postgresql_url}?command_timeout=1") as store:
        await store.commit([write("t", 1)])
        async with postgres.connected(postgresql_url.rpartition("/")[2]) as other:
            await other.execute("BEGIN; LOCK TABLE events IN SHARE MODE")
            with pytest.raises(StoreError, match="the database does not respond") as caught:
                await store.commit([write("t", 2)])
            assert caught.value.temporary
            assert await numbers_of(store, "t") == [1]
        await store.commit([write("t", 2)])
        assert await numbers_of(store, "t") == [1, 2]


# --- damage -----------------------------------------------------------------------------------------------------


async def crashed_copy(url: str, to: Path) -> Path:
    """Return a copy of the file, as a process that ends without closing it leaves it."""
    async with open_store(url) as store:
        await store.commit([large(f"t{n}", 1) for n in range(3)])
    async with open_store(url) as store:
        await store.commit([write("t", 1)])
        path = path_of(url)
        for name in (path.name, f"{path.name}-wal"):
            shutil.copy(path.with_name(name), to / name)
    return to / path.name


def damage(path: Path) -> None:
    """Overwrite every tenth page of a database except the first ones."""
    with path.open("r+b") as file:
        for page in range(10, path.stat().st_size // 4096, 10):
            file.seek(page * 4096)
            file.write(b"\xff" * 4096)


async def test_a_file_that_a_crash_left_is_used_and_one_that_it_damaged_is_not(
    sqlite_url: str, tmp_path: Path
) -> None:
    path = await crashed_copy(sqlite_url, tmp_path)
    whole = tmp_path / "whole"
    whole.mkdir()
    for each in (path, path.with_name(f"{path.name}-wal")):
        shutil.copy(each, whole / each.name)
    async with open_store(f"sqlite:///{whole}/{path.name}") as store:
        assert await numbers_of(store, "t") == [1]
        assert await numbers_of(store, "t2") == [1]
    damage(path)
    store = Store(f"sqlite:///{path}")
    for _ in range(2):
        with pytest.raises(
            StoreError, match=r"cannot open the store: the file is damaged: restore"
        ) as caught:
            await store.open()
        assert not caught.value.temporary


async def test_a_check_that_takes_too_long_is_broken_off(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from tailrace.server.store import sqlite_file

    async with open_store(sqlite_url) as store:
        await store.commit([write(f"many{n}", *range(1, 2000)) for n in range(50)])
    path = await crashed_copy(sqlite_url, tmp_path)
    monkeypatch.setattr(sqlite_file, "CHECK_SECONDS", 0.001)
    caplog.set_level("INFO", "tailrace.server")
    async with open_store(f"sqlite:///{path}") as store:
        await store.commit([write("t", 2)])
        assert await numbers_of(store, "t") == [1, 2]
    assert "no damage found in 0.001 s" in caplog.text


async def test_damage_found_while_reading_is_reported_in_plain_words(sqlite_url: str) -> None:
    async with open_store(sqlite_url) as store:
        await store.commit([large("t", 1)])
    async with open_store(sqlite_url) as store:
        damage(path_of(sqlite_url))
        with pytest.raises(StoreError, match="the file is damaged: restore it from a backup"):
            await store.load_events("t", 0)


async def test_damage_in_a_file_that_was_closed_in_good_order_is_found_at_the_start(sqlite_url: str) -> None:
    async with open_store(sqlite_url) as store:
        await store.commit([large("t", 1)])
    damage(path_of(sqlite_url))
    for _ in range(2):
        with pytest.raises(StoreError, match="the file is damaged: restore it from a backup"):
            await Store(sqlite_url).open()


async def test_a_file_that_is_no_database_is_an_error_of_the_store(tmp_path: Path) -> None:
    import fcntl

    (tmp_path / "notes.txt").write_text("this is not a database, it is a text of some length" * 100)
    store = Store(f"sqlite:///{tmp_path}/notes.txt")
    with pytest.raises(StoreError, match="cannot open the store: the file is not a SQLite database"):
        await store.open()
    # All locks are released without a close: the file is available at once.
    with (tmp_path / "notes.txt.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


async def test_a_folder_that_cannot_be_made_is_an_error_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot open the store: "):
        await Store(f"sqlite:///{tmp_path}/file/t.db").open()


# --- cancellation -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("natively", [True, False], ids=["by asyncio", "by anyio"])
async def test_a_caller_may_be_cancelled_at_any_moment(any_url: str, natively: bool) -> None:
    async with open_store(any_url) as store:
        await store.commit([write("t", 1, state=TaskState.WORKING)])

        async def ask() -> None:
            await store.load_task("t", "me")
            await store.mark_delivered("t", "w", 1)
            await store.load_events("t", 0, max_bytes=10)

        for turns in range(12):
            if natively:
                asking = asyncio.ensure_future(ask())
                for _ in range(turns):
                    await asyncio.sleep(0)  # noqa: TID251 — one iteration of the event loop
                asking.cancel()
                await asyncio.wait((asking,))
                assert asking.cancelled() or asking.exception() is None
            else:
                async with anyio.create_task_group() as group:
                    group.start_soon(ask)
                    for _ in range(turns):
                        await anyio.lowlevel.checkpoint()
                    group.cancel_scope.cancel()
            await store.commit([write("t", turns + 2)])
            assert await numbers_of(store, "t") == list(range(1, turns + 3))


# --- PostgreSQL -------------------------------------------------------------------------------------------------

# The idle connections are closed with their locks; otherwise the server would take half a minute to end them.
OTHERS = """
SELECT count(pg_terminate_backend(pid, 30000)) FROM pg_stat_activity WHERE application_name = 'tailrace'
"""


async def test_a_lost_connection_costs_no_more_than_the_transaction(
    postgres: PostgresServer, postgresql_url: str
) -> None:
    async with open_store(postgresql_url) as store:
        await store.commit([write("t", 1)])
        assert await numbers_of(store, "t") == [1]
        assert await postgres.execute(OTHERS) >= 1
        with pytest.raises(StoreError, match="cannot write to the store") as caught:
            await store.commit([write("t", 2)])
        assert caught.value.temporary
        await store.commit([write("t", 2)])
        assert await numbers_of(store, "t") == [1, 2]
        # The new connection holds the lock, as before.
        with pytest.raises(StoreError, match="in use by another process"):
            await Store(postgresql_url).open()


async def test_a_server_whose_place_was_taken_writes_nothing_more(
    postgres: PostgresServer, postgresql_url: str
) -> None:
    async with open_store(postgresql_url) as first:
        await first.commit([write("t", 1)])
        await postgres.execute(OTHERS)
        async with open_store(postgresql_url) as second:
            for _ in range(3):
                with pytest.raises(StoreError):
                    await first.commit([write("t", 2)])
            with pytest.raises(StoreError, match="in use by another process"):
                await first.commit([write("t", 2)])
            await second.commit([write("t", 2)])
            assert await numbers_of(second, "t") == [1, 2]


async def test_an_answer_to_a_commit_that_is_lost_does_not_give_up_what_is_kept(
    postgres: PostgresServer, postgresql_url: str
) -> None:
    async with CuttingProxy(f"http://127.0.0.1:{postgres.port}") as proxy:
        port = proxy.url.rpartition(":")[2]
        async with open_store(postgresql_url.replace(str(postgres.port), port)) as store:
            for number in (1, 2):
                passed = proxy.passed
                await store.commit([write("t", number)])
            # The same again, without the last byte, which confirms the commit.
            proxy.cut_after(proxy.passed - passed - 1)
            with pytest.raises(StoreError) as caught:
                await store.commit([write("t", 3)])
            assert caught.value.temporary
            assert (
                await postgres.execute("SELECT max(number) FROM events", postgresql_url.rpartition("/")[2])
                == 3
            )
            await store.commit([write("t", 3)])
            assert await numbers_of(store, "t") == [1, 2, 3]
            # Rows of another writer are not mistaken for its own.
            with pytest.raises(StoreError, match="unique"):
                await store.commit([write("t", 3)])


async def test_a_connection_that_was_cut_silently_costs_a_moment(
    postgres: PostgresServer, postgresql_url: str
) -> None:
    async with CuttingProxy(f"http://127.0.0.1:{postgres.port}") as proxy:
        port = proxy.url.rpartition(":")[2]
        url = f"{postgresql_url}?command_timeout=1".replace(str(postgres.port), port)
        async with open_store(url) as store:
            await store.commit([write("t", 1)])
            assert await numbers_of(store, "t") == [1]
            proxy.forget()
            with anyio.fail_after(20):
                assert await numbers_of(store, "t") == [1]
            with anyio.fail_after(20):
                with pytest.raises(StoreError, match="the database does not respond") as caught:
                    await store.commit([write("t", 2)])
                assert caught.value.temporary
                # The database does not detect the cut: its session still holds the lock.
                await postgres.execute(OTHERS)
                await store.commit([write("t", 2)])
                assert await numbers_of(store, "t") == [1, 2]


async def test_a_store_is_closed_soon_though_its_connections_were_cut_silently(
    postgres: PostgresServer, postgresql_url: str
) -> None:
    async with CuttingProxy(f"http://127.0.0.1:{postgres.port}") as proxy:
        store = Store(postgresql_url.replace(str(postgres.port), proxy.url.rpartition(":")[2]))
        await store.open()
        assert await numbers_of(store, "t") == []
        proxy.forget()
        with anyio.fail_after(10):
            await store.close()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("/test", "/nowhere"), "the database does not exist"),
        (("127.0.0.1:", "127.0.0.1:1"), "there is no database at postgresql"),
    ],
)
async def test_a_database_that_cannot_be_reached_is_named(
    postgresql_url: str, change: tuple[str, str], words: str
) -> None:
    url = postgresql_url.replace(*change)
    if "127.0.0.1:1" in url:
        url = "postgresql://me:secret@127.0.0.1:1/db"
    with pytest.raises(StoreError, match=f"cannot open the store: {words}") as caught:
        await Store(url).open()
    assert "secret" not in str(caught.value)


async def test_a_connection_that_broke_is_not_taken_for_a_database_that_is_not_there(
    postgres: PostgresServer, postgresql_url: str
) -> None:
    async with CuttingProxy(f"http://127.0.0.1:{postgres.port}") as proxy:
        port = proxy.url.rpartition(":")[2]
        async with open_store(postgresql_url.replace(str(postgres.port), port)) as store:
            await store.commit([write("t", 1)])
            proxy.refuse()
            for _ in range(2):  # the open connection, and the next one, which is reset at once
                with pytest.raises(StoreError, match="the connection to the database was lost") as caught:
                    await store.commit([write("t", 2)])
                assert caught.value.temporary
            proxy.heal()
            await store.commit([write("t", 2)])
            assert await numbers_of(store, "t") == [1, 2]


async def test_an_option_of_the_address_that_is_not_known_is_an_error_of_the_setting(
    postgresql_url: str,
) -> None:
    async with open_store(f"{postgresql_url}?sslmode=disable"):
        pass
    with pytest.raises(ConfigurationError, match=r"TAILRACE_STORE.*colour"):
        await Store(f"{postgresql_url}?colour=red").open()


def test_a_driver_that_is_missing_is_named_with_the_extra_that_brings_it() -> None:
    code = """
from tailrace.server.store.store import Store
try:
    Store("postgresql://host/db")
except Exception as error:
    print(type(error).__name__, error)
"""
    printed = run_without("asyncpg", code)
    assert printed.startswith("ConfigurationError TAILRACE_STORE: ")
    assert "pip install 'tailrace[postgres]'" in printed

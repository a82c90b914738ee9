"""Files on disk are readable by the server's user only, for every umask, and as durable as configured."""

import logging
import os
import sqlite3
import stat
from collections.abc import Generator
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from support.processes import served
from support.rpc import Rpc, message
from support.store_objects import numbers_of, open_store, write
from tailrace.server.store.sqlite import SqliteDatabase
from tailrace.server.store.store import Durability, Store
from tailrace.streaming import TaskState


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Generator[int]:
    """Set each umask in turn, and restore the previous one."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def modes(folder: Path) -> dict[str, int]:
    return {path.name: mode(path) for path in folder.iterdir()}


async def test_files_and_folders_are_created_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    folder = tmp_path / "a" / "b"
    async with open_store(f"sqlite:///{folder}/tasks.db") as store:
        await store.commit([write("t", 1, 2)])
        found = modes(folder)
        assert found.keys() >= {"tasks.db", "tasks.db-wal", "tasks.db-shm", "tasks.db.lock"}
        assert set(found.values()) == {0o600}
    assert set(modes(folder).values()) == {0o600}
    assert mode(folder) == mode(tmp_path / "a") == 0o700


async def test_a_folder_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o755)
    async with open_store(f"sqlite:///{tmp_path}/tasks.db"):
        assert mode(tmp_path) == 0o755


async def test_files_of_an_older_version_are_made_private_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{tmp_path}/tasks.db"
    async with open_store(url) as store:
        await store.commit([write("t", 1, 2, state=TaskState.COMPLETED)])
    for name in modes(tmp_path):
        os.chmod(tmp_path / name, 0o644)  # as version 0.1 created them
    caplog.clear()
    async with open_store(url) as store:
        assert await numbers_of(store, "t") == [1, 2]
        assert set(modes(tmp_path).values()) == {0o600}
    assert "tasks.db had mode 0644, and now has 0600" in caplog.text
    caplog.clear()
    async with open_store(url):
        pass
    assert "mode" not in caplog.text


async def test_file_permissions_for_a_group_are_preserved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{tmp_path}/tasks.db"
    async with open_store(url):
        pass
    os.chmod(tmp_path / "tasks.db", 0o640)
    caplog.set_level(logging.WARNING)
    async with open_store(url) as store:
        await store.commit([write("t", 1)])
        assert mode(tmp_path / "tasks.db") == 0o640
    assert "mode" not in caplog.text


async def test_a_database_without_a_file_makes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with open_store("sqlite://"):
        assert modes(tmp_path) == {}


async def test_a_server_creates_its_files_private(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/data/tasks.db"
    with served(tmp_path / "log", "--model", "ollama:none", TAILRACE_STORE=store) as server:
        await server.ready()
        async with Rpc(server.url) as rpc:
            await rpc.call("SendMessage", message())
        assert set(modes(tmp_path / "data").values()) == {0o600}
    assert mode(tmp_path / "data") == 0o700


@pytest.mark.parametrize(("durability", "synchronous"), [("process", 1), ("power", 2)])
async def test_the_setting_decides_whether_a_commit_waits_for_the_disk(
    tmp_path: Path, durability: Durability, synchronous: int
) -> None:
    url = f"sqlite:///{tmp_path}/tasks.db"
    database = SqliteDatabase(make_url(url), durability)
    await database.open()
    try:
        # On the connection that writes.
        found = await database.write(
            lambda connection: connection.exec_driver_sql("PRAGMA synchronous").scalar_one()
        )
        assert found == synchronous
    finally:
        await database.close()
    store = Store(url, durability=durability)
    await store.open()
    try:
        for number in range(1, 50):
            await store.commit([write("t", number)])
        assert await numbers_of(store, "t") == list(range(1, 50))
    finally:
        await store.close()
    with sqlite3.connect(tmp_path / "tasks.db") as connection:
        assert connection.execute("SELECT count(*) FROM events").fetchone() == (49,)
    connection.close()

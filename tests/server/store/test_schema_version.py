"""The schema: the same from models or migrations; older ones are upgraded, unknown ones left alone."""

import re
import sqlite3
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from support.store_objects import numbers_of, open_store, task, user_message, write
from tailrace.server.store.schema import HEAD, metadata, versions
from tailrace.server.store.schema_version import MIGRATIONS
from tailrace.server.store.store import Store
from tailrace.streaming import TaskState
from tailrace.wrappers import StoreError

# The schema of the first version, in the dialect of each database.
FIRST_TABLES = """
CREATE TABLE tasks (id TEXT NOT NULL, owner TEXT NOT NULL, context_id TEXT NOT NULL, state TEXT NOT NULL,
  updated DATETIME NOT NULL, number INTEGER NOT NULL, snapshot BLOB NOT NULL, PRIMARY KEY (id));
CREATE INDEX tasks_by_context ON tasks (owner, context_id);
CREATE INDEX tasks_by_state ON tasks (state);
CREATE INDEX tasks_by_time ON tasks (owner, updated, id);
CREATE TABLE events (task_id TEXT NOT NULL, number INTEGER NOT NULL, body BLOB NOT NULL, state TEXT,
  PRIMARY KEY (task_id, number)) WITHOUT ROWID;
CREATE INDEX status_events ON events (task_id, number) WHERE state IS NOT NULL;
CREATE TABLE messages (position INTEGER NOT NULL, owner TEXT NOT NULL, context_id TEXT NOT NULL,
  task_id TEXT NOT NULL, body BLOB NOT NULL, PRIMARY KEY (position));
CREATE INDEX messages_by_context ON messages (owner, context_id, position);
CREATE TABLE push_configs (task_id TEXT NOT NULL, id TEXT NOT NULL, owner TEXT NOT NULL, dialect TEXT NOT NULL,
  body BLOB NOT NULL, delivered INTEGER NOT NULL, PRIMARY KEY (task_id, id));
"""


@asynccontextmanager
async def database(url: str) -> AsyncGenerator[Callable[[Callable[[Connection], Any]], Awaitable[Any]]]:
    """Run a function on a database, in a transaction, independently of the store."""
    parsed = make_url(url)
    if parsed.database and parsed.get_backend_name() == "sqlite":
        Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
    drivers = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}
    engine = create_async_engine(parsed.set(drivername=drivers[parsed.get_backend_name()]))

    async def run(work: Callable[[Connection], Any]) -> Any:
        async with engine.begin() as connection:
            return await connection.run_sync(work)

    try:
        yield run
    finally:
        await engine.dispose()


def described(connection: Connection) -> dict[str, Any]:
    """Return the complete description of the database's tables."""
    about = inspect(connection)
    tables: dict[str, Any] = {}
    for name in about.get_table_names():
        columns = [
            (each["name"], str(each["type"]), getattr(each["type"], "collation", None), each["nullable"])
            for each in about.get_columns(name)
        ]
        indexes = {
            each["name"]: (
                each["column_names"],
                {key: str(value) for key, value in each.get("dialect_options", {}).items()},
            )
            for each in about.get_indexes(name)
        }
        tables[name] = (columns, about.get_pk_constraint(name)["constrained_columns"], indexes)
    if connection.dialect.name == "sqlite":
        made = connection.execute(text("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
        # Migrations append the definition of an added column; columns are compared above.
        tables["options"] = sorted(
            (name, sql.split()[1], re.findall(r"WITHOUT ROWID|WHERE .*", sql)) for name, sql in made
        )
    return tables


def make_first_tables(connection: Connection) -> None:
    """Create the tables of version 1, which did not record a version."""
    for statement in FIRST_TABLES.split(";"):
        if statement.strip():
            connection.exec_driver_sql(statement)


async def make_by_migrations(url: str) -> None:
    """Create an empty database at the first version, which the store then migrates."""
    async with database(url) as run:

        def begin(connection: Connection) -> None:
            versions.create(connection)
            connection.exec_driver_sql("CREATE TABLE tasks_before (id INTEGER)")  # a table of another program
            config = Config()
            config.set_main_option("script_location", str(MIGRATIONS))
            config.attributes["connection"] = connection
            from alembic import command

            command.upgrade(config, "0001")
            connection.exec_driver_sql("DROP TABLE tasks_before")

        await run(begin)


async def test_the_newest_migration_is_the_version_of_the_code() -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    scripts = ScriptDirectory.from_config(config)
    assert scripts.get_heads() == [HEAD]
    assert [each.revision for each in scripts.walk_revisions()] == [
        f"{number:04}" for number in range(int(HEAD), 0, -1)
    ]


async def test_a_new_database_is_what_the_migrations_make(
    store_url: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    made: list[dict[str, Any]] = []
    other = f"sqlite:///{tmp_path}/other.db"
    if store_url.startswith("postgresql"):
        other = await request.getfixturevalue("postgres").empty_database("other")
    await make_by_migrations(other)
    for url in (store_url, other):
        async with open_store(url) as store:
            await store.commit([write("t", 1, state=TaskState.COMPLETED)])
        async with database(url) as run:
            made.append(await run(described))
            context: dict[str, Any] = {"version_table": versions.name, "compare_type": True}
            differences = await run(
                lambda connection, options=context: compare_metadata(
                    MigrationContext.configure(connection, opts=options), metadata
                )
            )
            assert differences == []
            assert (
                await run(lambda connection: connection.scalar(text("SELECT * FROM tailrace_version")))
                == HEAD
            )
    assert made[0] == made[1]
    assert set(made[0]) >= {"tasks", "events", "messages", "push_configs", "tailrace_version"}


async def test_a_database_of_before_there_were_versions_is_taken_over(sqlite_url: str) -> None:
    async with database(sqlite_url) as run:
        await run(make_first_tables)
        body = task("t", TaskState.COMPLETED).to_json()
        row = ("t", "me", "c", "TASK_STATE_COMPLETED", "2026-01-02 00:00:00.000000", 2, body)
        await run(
            lambda connection: connection.exec_driver_sql("INSERT INTO tasks VALUES (?,?,?,?,?,?,?)", row)
        )
        await run(
            lambda connection: connection.exec_driver_sql(
                "INSERT INTO events VALUES ('t', 1, x'7b7d', NULL), ('t', 2, x'7b7d', NULL)"
            )
        )
        await run(
            lambda connection: connection.exec_driver_sql(
                "INSERT INTO messages VALUES (1, 'me', 'c', 't', ?)", (user_message("before").to_json(),)
            )
        )
    for _ in range(2):
        async with open_store(sqlite_url) as store:
            stored = await store.load_task("t", "me")
            assert stored is not None
            assert (stored.number, stored.task) == (2, task("t", TaskState.COMPLETED))
            assert await numbers_of(store, "t") == [1, 2]
            assert await store.load_conversation("c", "me", 9) == [user_message("before")]
    async with open_store(f"{sqlite_url}.new"), database(sqlite_url) as run:
        taken_over = await run(described)
    async with database(f"{sqlite_url}.new") as run:
        assert await run(described) == taken_over


async def test_sqlite_compares_keys_without_reading_large_rows(sqlite_url: str) -> None:
    """In a table WITHOUT ROWID, a write next to an event of megabytes reads all of it."""
    async with database(sqlite_url) as run:
        await run(make_first_tables)
    for url in (sqlite_url, f"{sqlite_url}.new"):
        async with open_store(url), database(url) as run:
            found = await run(lambda c: c.exec_driver_sql("SELECT name, sql FROM sqlite_master").all())
        tables = {name: sql for name, sql in found if sql}
        assert {"tasks", "events", "messages", "journal"} <= set(tables)
        assert [name for name, sql in tables.items() if "WITHOUT ROWID" in sql] == []


async def test_a_database_that_lacks_a_table_of_the_first_version_gets_it(sqlite_url: str) -> None:
    async with database(sqlite_url) as run:
        await run(make_first_tables)
        await run(lambda connection: connection.exec_driver_sql("DROP TABLE push_configs"))
    async with open_store(sqlite_url) as store:
        assert await store.load_push_configs("t", "me") == []


async def test_a_migration_that_fails_changes_nothing(store_url: str) -> None:
    await make_by_migrations(store_url)
    async with database(store_url) as run:
        # An index with the name that the last migration uses.
        await run(lambda c: c.exec_driver_sql("CREATE INDEX messages_by_task ON messages (owner)"))
        before = await run(described)
        for _ in range(2):
            with pytest.raises(StoreError, match=r"cannot open the store.*messages_by_task"):
                await Store(store_url).open()
            assert await run(described) == before
        await run(lambda c: c.exec_driver_sql("DROP INDEX messages_by_task"))
    async with open_store(store_url) as store:
        await store.commit([write("t", 1, state=TaskState.COMPLETED)])


async def test_a_database_of_a_newer_version_is_refused_and_left_as_it_is(store_url: str) -> None:
    async with open_store(store_url):
        pass
    async with database(store_url) as run:
        await run(lambda c: c.exec_driver_sql("UPDATE tailrace_version SET version_num = '0999'"))
        before = await run(described)
        with pytest.raises(StoreError, match=r"newer version of tailrace.*0999.*run that version") as caught:
            await Store(store_url).open()
        assert not caught.value.temporary
        assert await run(described) == before


async def test_foreign_tables_are_refused_and_left_unchanged(store_url: str) -> None:
    async with database(store_url) as run:
        await run(lambda c: c.exec_driver_sql("CREATE TABLE tasks (id INTEGER, title TEXT)"))
        before = await run(described)
        with pytest.raises(StoreError, match="'tasks' that is not tailrace's"):
            await Store(store_url).open()
        assert await run(described) == before


def test_alembic_is_not_imported_for_a_database_that_is_up_to_date(tmp_path: Path) -> None:
    program = f"""
import anyio, sys
from tailrace.server.store.store import Store
async def main():
    for _ in range(2):
        store = Store("sqlite:///{tmp_path}/t.db")
        await store.open()
        await store.close()
anyio.run(main)
print(*sorted({{name.partition(".")[0] for name in sys.modules}} & {{"alembic", "mako", "asyncpg"}}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
    with sqlite3.connect(tmp_path / "t.db") as connection:
        [found] = connection.execute("SELECT version_num FROM tailrace_version")
    connection.close()
    assert found == (HEAD,)

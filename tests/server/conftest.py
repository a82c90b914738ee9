"""Databases for tests: a SQLite file, and one of a PostgreSQL that is started once for all tests that want it; a Valkey."""

from collections.abc import Generator
from functools import partial
from pathlib import Path

import pytest

from support.nodes import RunEngine, running_alone, running_apart
from support.postgres import PostgresServer, running_postgres
from support.valkey import ValkeyServer, running_valkey


@pytest.fixture(scope="session")
def postgres() -> Generator[PostgresServer]:
    """A PostgreSQL server."""
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def valkey() -> Generator[ValkeyServer]:
    """A Valkey server."""
    with running_valkey() as server:
        yield server


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The address of a SQLite file that is not there yet."""
    return f"sqlite:///{tmp_path}/deep/folder/tasks.db"


@pytest.fixture
async def postgresql_url(postgres: PostgresServer) -> str:
    """The address of an empty PostgreSQL database."""
    return await postgres.empty_database()


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest) -> str:
    """The address of an empty database: a test that asks for it runs on each kind."""
    return request.getfixturevalue(f"{request.param}_url")


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def any_url(request: pytest.FixtureRequest) -> str:
    """As `store_url`, and a database in memory, too."""
    return "sqlite://" if request.param == "memory" else request.getfixturevalue(f"{request.param}_url")


@pytest.fixture(params=["alone", "nodes"])
def run_engine(request: pytest.FixtureRequest) -> RunEngine:
    """Runs an engine: a test that asks for it runs on a server by itself, and on two nodes.

    Of these, one runs the tasks, and the other one is asked for everything: to follow them, to cancel them.
    """
    if request.param == "alone":
        return running_alone
    postgres, valkey = request.getfixturevalue("postgres"), request.getfixturevalue("valkey")
    return partial(running_apart, postgres, valkey)

"""Databases for tests: a SQLite file, and a PostgreSQL server shared by all tests."""

from functools import partial
from pathlib import Path

import pytest

from support.nodes import RunEngine, running_alone, running_apart
from support.postgres import PostgresServer


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """Return the address of a SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path}/deep/folder/tasks.db"


@pytest.fixture
async def postgresql_url(postgres: PostgresServer) -> str:
    """Return the address of an empty PostgreSQL database."""
    return await postgres.empty_database()


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest) -> str:
    """Return the address of an empty database; tests run once per kind."""
    return request.getfixturevalue(f"{request.param}_url")


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def any_url(request: pytest.FixtureRequest) -> str:
    """Return one like `store_url`, or a database in memory."""
    return "sqlite://" if request.param == "memory" else request.getfixturevalue(f"{request.param}_url")


@pytest.fixture(params=["alone", "nodes"])
def run_engine(request: pytest.FixtureRequest) -> RunEngine:
    """Run an engine; tests run on a single server, and on two nodes.

    Of the two nodes, one runs the tasks; all requests (subscribe, cancel) go to the other.
    """
    if request.param == "alone":
        return running_alone
    postgres, valkey = request.getfixturevalue("postgres"), request.getfixturevalue("valkey")
    return partial(running_apart, postgres, valkey)

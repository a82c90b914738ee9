"""The version of a database, and its migration.

A new database gets the current tables. For an older database, alembic runs the missing migrations (``migrations/``). Alembic is
imported only for a migration.
"""

import logging
from pathlib import Path

from sqlalchemy import Connection, insert, inspect, select

from tailrace.server.store.schema import HEAD, add_postgresql_types, metadata, versions
from tailrace.wrappers import StoreError

logger = logging.getLogger("tailrace.server")

MIGRATIONS = Path(__file__).parent / "migrations"

# Columns of every version. They distinguish tailrace's tables from tables of other programs with the same names.
_TAILRACE_COLUMNS = {
    "tasks": {"id", "owner", "context_id", "state", "updated", "number", "snapshot"},
    "events": {"task_id", "number", "body", "state"},
    "messages": {"position", "owner", "context_id", "task_id", "body"},
    "push_configs": {"task_id", "id", "owner", "dialect", "body", "delivered"},
}


def is_up_to_date(connection: Connection) -> bool:
    """Return whether a database has the version of this code."""
    return _version(connection) == HEAD


def migrate_schema(connection: Connection) -> None:
    """Create the tables of a new database, or migrate an older database, in the current transaction.

    A database that has tailrace's tables, but no recorded version, is migrated from the first version.

    Raises:
        StoreError: A newer version of tailrace created the database, or its tables belong to another program.
    """
    version = _version(connection)
    if version == HEAD:
        return
    if connection.dialect.name == "postgresql":
        add_postgresql_types()
    if version is None:
        tables = set(inspect(connection).get_table_names())
        _check_ours(connection, tables)
        if tables.isdisjoint(_TAILRACE_COLUMNS):
            metadata.create_all(connection)
            versions.create(connection, checkfirst=True)
            connection.execute(insert(versions).values(version_num=HEAD))
            return
    elif version not in _known():
        raise StoreError(
            f"a newer version of tailrace created the store (version {version} of the tables, this one supports up to "
            f"{HEAD}): run that version or a newer one, or restore an older backup",
            temporary=False,
        )
    logger.info("migrating the store's tables from version %s to %s", version or "none", HEAD)
    _migrate(connection)


def _version(connection: Connection) -> str | None:
    if not inspect(connection).has_table(versions.name):
        return None
    return connection.scalar(select(versions.c.version_num))


def _known() -> set[str]:
    return {f"{number:04}" for number in range(1, int(HEAD) + 1)}


def _check_ours(connection: Connection, tables: set[str]) -> None:
    for name in tables & set(_TAILRACE_COLUMNS):
        if not _TAILRACE_COLUMNS[name] <= {
            column["name"] for column in inspect(connection).get_columns(name)
        }:
            raise StoreError(
                f"the database has a table {name!r} that is not tailrace's: use a separate database",
                temporary=False,
            )


def _migrate(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")

"""The row with the secret of an installation."""

import secrets as random_secrets

from sqlalchemy import Connection, Insert, select

from tailrace.server.store.schema import secrets

_NAME = "installation"


def installation_secret(connection: Connection) -> bytes:
    """Return the secret of the installation. If it does not exist, create it."""
    query = select(secrets.c.value).where(secrets.c.name == _NAME)
    value = connection.execute(query).scalar_one_or_none()
    if value is not None:
        return value
    row = {"name": _NAME, "value": random_secrets.token_bytes(32)}
    connection.execute(_insert_if_missing(connection.dialect.name), row)
    return connection.execute(query).scalar_one()


def _insert_if_missing(dialect: str) -> Insert:
    # Only the dialect in use is imported, because each needs megabytes.
    if dialect == "sqlite":
        from sqlalchemy.dialects.sqlite import insert
    else:
        from sqlalchemy.dialects.postgresql import insert
    return insert(secrets).on_conflict_do_nothing()

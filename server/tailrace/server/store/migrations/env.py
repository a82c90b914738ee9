"""Runs the migrations of alembic on a given connection, in its transaction."""

from alembic import context

from tailrace.server.store.schema import metadata, versions

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=versions.name,
    transactional_ddl=True,  # SQLite supports it if the transaction is begun explicitly
)
context.run_migrations()

"""How alembic runs the migrations: on the connection, and in the transaction, that it is handed."""

from alembic import context

from tailrace.server.stores.schema import metadata, versions

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=versions.name,
    transactional_ddl=True,  # SQLite can, where the transaction is begun by hand
)
context.run_migrations()

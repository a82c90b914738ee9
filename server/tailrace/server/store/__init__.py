"""SQLite and PostgreSQL: tables, migrations, transactions, retention and encryption."""

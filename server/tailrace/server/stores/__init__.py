"""What `tailrace.server.store` is made of: the tables, the databases that they are in, and their upkeep."""

"""Tasks: the updates of a task, the record that numbers its events, and the log that subscribers read."""

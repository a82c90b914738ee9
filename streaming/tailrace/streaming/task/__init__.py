"""Tasks: the updates of a task, its record with numbered events, and the log from which subscribers read."""

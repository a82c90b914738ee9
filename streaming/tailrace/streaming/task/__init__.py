"""Tasks: updates folded into numbered events, the log of events, and the lifecycle."""

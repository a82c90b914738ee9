"""The protocols of the server. Protocols other than A2A share one translation of a task's events."""

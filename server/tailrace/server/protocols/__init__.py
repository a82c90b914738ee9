"""Protocols other than A2A: one fold over the log of a task, and an encoder, a request parser and routes for each."""

"""Execution of tasks: the engine, turns, recovery, limits, filters, webhooks, and the operations of A2A."""

"""Helpers for asyncio code: async context managers, and CPU-bound work in a worker thread."""

"""Helpers for asyncio: an async context manager, and CPU-bound work in a worker thread."""

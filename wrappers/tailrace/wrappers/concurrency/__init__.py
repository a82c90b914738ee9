"""Helpers for asyncio: an async context manager, and a worker thread for CPU-bound work."""

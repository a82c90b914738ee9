"""Async resources and worker threads."""

"""One module a contestant, each run in a process of its own: ``python -m benchmarks.contestants.<name>``."""

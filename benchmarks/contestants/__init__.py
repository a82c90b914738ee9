"""One module per contestant, each run in its own process: ``python -m benchmarks.contestants.<name>``."""

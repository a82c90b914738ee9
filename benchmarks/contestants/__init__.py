"""One module per contestant. Each module runs in its own process: ``python -m benchmarks.contestants.<name>``."""

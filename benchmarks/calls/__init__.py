"""Function calls for each token, counted by the interpreter on a running server: ``python -m benchmarks.calls``."""

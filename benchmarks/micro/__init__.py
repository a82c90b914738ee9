"""The processing stages of one chunk, one at a time: in time (``pytest benchmarks/micro``), and in instructions."""

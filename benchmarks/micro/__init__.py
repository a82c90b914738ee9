"""The parts of the way of one chunk, one at a time: for the clock (``pytest benchmarks/micro``), and in instructions."""

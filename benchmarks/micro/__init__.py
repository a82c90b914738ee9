"""Measurements of single processing stages of a chunk: in time (``pytest benchmarks/micro``), and in instructions."""

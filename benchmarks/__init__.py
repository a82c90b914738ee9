"""Benchmarks of tailrace and similar packages, the contestants.

Each contestant processes the same inputs in its own process. A *behaviour* is one measurement.
"""

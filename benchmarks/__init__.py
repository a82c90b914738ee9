"""Benchmarks of tailrace and similar packages, the contestants.

Each contestant runs in its own process, and processes the same inputs. A behaviour is one measurement, for example the decoding
of a response.
"""

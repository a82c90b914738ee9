"""Benchmarks of tailrace: named behaviours on shared inputs, each contestant in its own process."""

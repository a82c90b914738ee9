"""Benchmarks of tailrace: named behaviours on shared inputs, each contestant in a process of its own."""

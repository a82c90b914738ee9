"""Folding of deltas into messages."""

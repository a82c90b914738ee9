"""Assembly of complete messages from the deltas of a stream. `tailrace.streaming.Accumulator` uses this package."""

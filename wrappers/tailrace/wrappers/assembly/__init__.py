"""Assembly of messages from the deltas of a stream."""

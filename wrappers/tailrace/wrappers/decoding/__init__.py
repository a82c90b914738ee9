"""Decoding of streamed response bodies of all providers: framing, JSON payloads, and errors inside a stream."""

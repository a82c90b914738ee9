"""Decoding of streamed response bodies: framing, payloads, detection, errors inside a stream."""

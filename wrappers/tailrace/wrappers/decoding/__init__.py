"""Decoding of streamed response bodies: framing, JSON payloads, and errors inside a stream.

All providers use this package.
"""

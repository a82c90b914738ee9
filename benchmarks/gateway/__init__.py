"""Cost of a complete server, from the bytes of the model to the bytes of the reader.

An upstream that replays responses, a server under test, and readers run in separate processes, and communicate over loopback.
"""

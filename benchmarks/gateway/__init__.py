"""Cost of a complete server: real processes on loopback, from the model's bytes to the reader's.

An upstream that replays answers, a server under test, and readers run in separate processes.
"""

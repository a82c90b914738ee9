"""What a whole server costs: real processes on loopback, from the model's bytes to the reader's.

An upstream that replays answers, a server under test, and readers, each in a process of its own.
"""

"""Cost of a complete server, from the bytes of the model to the bytes of the reader.

An upstream that replays responses, the server, and the readers run in separate processes.
"""

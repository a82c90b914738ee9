"""The data of a connection, parsed in slices."""

import asyncio
import gc
import weakref

from tailrace.server.http.sliced_data import SlicedData


class Connection:
    """A protocol that parses its data in slices."""

    def __init__(self) -> None:
        self.parsed = b""
        self.data = SlicedData(asyncio.Transport(), self.parse)

    def parse(self, data: bytes) -> None:
        self.parsed += data


def test_a_closed_connection_is_freed_without_a_garbage_collection() -> None:
    gc.disable()
    try:
        connection = Connection()
        connection.data.feed(b"x")
        assert connection.parsed == b"x"
        connection.data.close()
        freed = weakref.ref(connection)
        del connection
        assert freed() is None
    finally:
        gc.enable()

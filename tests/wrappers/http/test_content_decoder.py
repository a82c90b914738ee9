"""Decompression in bounded pieces."""

import gzip
import random
import zlib

import pytest

from tailrace.wrappers.http import TransportError
from tailrace.wrappers.http.content_decoder import ContentDecoder

TEXT = bytes(range(256)) * 40 + random.Random(0).randbytes(2000)


def raw(data: bytes) -> bytes:
    packed = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packed.compress(data) + packed.flush()


FORMS = {
    "gzip": ("gzip", gzip.compress(TEXT)),
    "two members": ("gzip", gzip.compress(TEXT[:99]) + gzip.compress(TEXT[99:])),
    "padding": ("x-gzip", gzip.compress(TEXT) + bytes(8)),
    "deflate": ("deflate", zlib.compress(TEXT)),
    "deflate without header": ("deflate", raw(TEXT)),
}


@pytest.mark.parametrize("limit", [1, 100, 1_000_000])
@pytest.mark.parametrize("size", [1, 7, 1_000_000])
@pytest.mark.parametrize(("encoding", "data"), FORMS.values(), ids=FORMS)
def test_data_is_decompressed_however_it_is_cut_and_read(encoding: str, data: bytes, size: int, limit: int):
    decoder = ContentDecoder(encoding)
    found: list[bytes] = []
    for at in range(0, len(data), size):
        decoder.feed([data[at : at + size]])
        while decoder.has_more:
            found.append(decoder.read(limit))
            assert len(found[-1]) <= limit
    decoder.close()
    assert b"".join(found) == TEXT


def test_a_body_without_data_is_complete():
    decoder = ContentDecoder("gzip")
    assert not decoder.has_more
    decoder.close()


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "no"])
def test_an_encoding_that_was_not_accepted_is_an_error(encoding: str):
    with pytest.raises(TransportError, match="accepted are gzip, deflate"):
        ContentDecoder(encoding)

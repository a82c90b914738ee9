"""JSON output: separators escaped, surrogates replaced, the value unchanged."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.streaming.a2a.json_encoding import encode_text, escape_separators
from tailrace.wrappers.messages import join_surrogates

SEPARATORS = "\u2028\u2029\x85"
# Any code point; the relevant ones more often than a uniform choice.
any_text = st.text(
    st.one_of(
        st.characters(codec=None, exclude_categories=()),
        st.sampled_from(SEPARATORS + '\ud83d\ude00\ud800\udfff\ufeff“"\\\n\r\x00'),
    )
)


@settings(deadline=None)
@given(any_text)
def test_encoded_text_is_one_line_of_json_with_the_same_value(text: str):
    encoded = encode_text(text)
    assert json.loads(encoded) == join_surrogates(text)
    # Python's widest definition of a line.
    assert len(encoded.decode().splitlines()) == 1


@settings(deadline=None)
@given(any_text)
def test_replacing_surrogates_touches_nothing_else(text: str):
    pair = re.compile("[\ud800-\udbff][\udc00-\udfff]")
    joined = pair.sub(lambda two: two[0].encode("utf-16-le", "surrogatepass").decode("utf-16-le"), text)
    assert join_surrogates(text) == re.sub("[\ud800-\udfff]", "\ufffd", joined)


@pytest.mark.parametrize(
    ("text", "replaced"),
    [
        ("plain", "plain"),
        ("grün", "grün"),
        ("\ud83d\ude00", "😀"),
        ("a\ud83d", "a\ufffd"),
        ("\ude00b", "\ufffdb"),
        ("\ud83d\ud83d\ude00", "\ufffd😀"),
        ("\ufeff\ud800", "\ufeff\ufffd"),
    ],
)
def test_a_surrogate_pair_becomes_its_character_and_half_of_one_becomes_u_fffd(text: str, replaced: str):
    assert join_surrogates(text) == replaced


def test_a_text_without_surrogates_is_returned_as_it_is():
    text = "grün “quoted”"
    assert join_surrogates(text) is text


@pytest.mark.parametrize(
    ("text", "encoded"),
    [
        ("", b'""'),
        ("hello", b'"hello"'),
        ("a\u2028b", rb'"a\u2028b"'),
        ("a\u2029b", rb'"a\u2029b"'),
        ("a\x85b", rb'"a\u0085b"'),
        ("“a”\u2028", '"“a”\\u2028"'.encode()),
        ("\ud800\u2028", '"\ufffd\\u2028"'.encode()),
    ],
)
def test_each_separator_is_written_as_an_escape(text: str, encoded: bytes):
    assert encode_text(text) == encoded


@settings(deadline=None)
@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_escaping_a_document_keeps_its_value(value: object):
    document = json.dumps(value, ensure_ascii=False).encode()
    escaped = escape_separators(document)
    assert json.loads(escaped) == value
    assert not any(separator in escaped.decode() for separator in SEPARATORS)


@pytest.mark.parametrize("document", [b'{"a":1}', '"“grün”"'.encode()])
def test_a_document_without_separators_is_returned_as_it_is(document: bytes):
    assert escape_separators(document) is document

"""Large values are encoded like small ones, in steps of bounded size."""

import base64
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from tailrace.wrappers import incremental_json_encoder
from tailrace.wrappers.incremental_json_encoder import encode_in_steps
from tailrace.wrappers.messages import Base64Data


class Leaf(BaseModel):
    text: str = ""
    raw: Base64Data = b""
    data: Any = None


class Tree(BaseModel):
    leaves: tuple[Leaf, ...] = ()
    names: dict[str, str] = {}


def encode(value: Any) -> bytes:
    if isinstance(value, BaseModel):
        return value.model_dump_json(warnings=False).encode()
    return msgspec.json.encode(value)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
)
TREES = st.builds(
    Tree,
    leaves=st.lists(
        st.builds(
            Leaf,
            text=st.text(max_size=40),
            raw=st.binary(max_size=40).map(lambda raw: base64.b64encode(raw).decode()),
            data=VALUES,
        ),
        max_size=4,
    ),
    names=st.dictionaries(st.text(max_size=3), st.text(max_size=40), max_size=3),
)


@pytest.fixture(scope="module", autouse=True)
def short_steps() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(incremental_json_encoder, "LONG_TEXT", 8)
        yield


@given(value=VALUES)
def test_the_json_of_a_value_is_that_of_one_call(value: Any) -> None:
    assert encode_in_steps(value, encode) == encode(value)


@given(tree=TREES)
def test_the_json_of_a_model_is_that_of_one_call(tree: Tree) -> None:
    assert encode_in_steps(tree, encode, (Leaf,)) == encode(tree)


def test_no_step_gets_more_than_a_slice() -> None:
    sizes: list[int] = []

    def measured(value: Any) -> bytes:
        encoded = encode(value)
        sizes.append(len(encoded))
        return encoded

    leaf = Leaf(text="é" * 1000, raw=b"x" * 1000, data={"rows": ["y" * 1000]})
    tree = Tree(leaves=(leaf, leaf), names={"a": "z" * 1000})
    assert encode_in_steps(tree, measured, (Leaf,)) == encode(tree)
    assert max(sizes) < 300

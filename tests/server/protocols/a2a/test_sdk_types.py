"""Conversion of our objects to the official SDK's, and back."""

from typing import Any

import pytest
from a2a.types import a2a_pb2
from google.protobuf import json_format
from google.protobuf.message import Message as ProtoMessage
from hypothesis import HealthCheck, given
from hypothesis import settings as profile

from support.a2a_objects import objects
from tailrace.server.protocols.a2a.card import build_card
from tailrace.server.protocols.a2a.sdk_types import fill
from tailrace.server.sdk import from_sdk, to_sdk
from tailrace.server.settings import Settings
from tailrace.streaming.a2a import (
    A2AModel,
    InternalError,
    InvalidParamsError,
    Message,
    Part,
    Role,
    StreamResponse,
    Task,
    TaskStatus,
)
from tailrace.streaming.a2a.field_types import MAX_JSON_DEPTH
from tailrace.streaming.a2a.lifecycle import TaskState


def official(model: A2AModel) -> type[ProtoMessage]:
    return getattr(a2a_pb2, type(model).__name__)


@profile(max_examples=300, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(objects)
def test_an_object_comes_back_as_it_was_by_way_of_the_wire(model: A2AModel) -> None:
    kind = official(model)
    wire = to_sdk(model, kind).SerializeToString()
    assert from_sdk(kind.FromString(wire), type(model)) == model


@profile(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(objects)
def test_an_object_is_what_protobufs_own_json_parser_makes_of_it(model: A2AModel) -> None:
    kind = official(model)
    assert to_sdk(model, kind) == json_format.Parse(model.to_json(), kind())


def data_part(value: Any) -> Part:
    return from_sdk(to_sdk(Part(data=value), a2a_pb2.Part), Part)


def test_whole_numbers_come_back_as_integers_and_fractions_as_they_are() -> None:
    assert data_part([1, -3, 0, 2.5, 2**53]).to_json() == Part(data=[1, -3, 0, 2.5, 2**53]).to_json()


def test_an_integer_beyond_a_double_becomes_its_digits() -> None:
    assert data_part([10**400]).data == [str(10**400)]
    assert data_part(10**400).data == str(10**400)


@pytest.mark.parametrize("value", [{}, [], [[]], {"a": {}}, {"": None}, [None, [None]], "", 0, False, None])
def test_empty_values_are_kept_apart(value: Any) -> None:
    back = data_part(value)
    assert back.kind == "data"
    assert back.data == value
    assert type(back.data) is type(value)


def nested(levels: int, *, lists: bool) -> Any:
    value: Any = "deep"
    for _ in range(levels):
        value = [value] if lists else {"a": value}
    return value


@pytest.mark.parametrize("lists", [True, False])
def test_what_nests_as_deep_as_is_allowed_passes_the_wire(lists: bool) -> None:
    """At every position: a parser that fails would lose the complete event."""
    value, metadata = nested(MAX_JSON_DEPTH, lists=lists), {"m": nested(MAX_JSON_DEPTH - 1, lists=lists)}
    message = Message(message_id="m", role=Role.AGENT, parts=(Part(data=value, metadata=metadata),))
    status = TaskStatus(state=TaskState.WORKING, message=message)
    event = StreamResponse(task=Task(id="t", status=status, history=(message,), metadata=metadata))
    wire = to_sdk(event, a2a_pb2.StreamResponse).SerializeToString()
    assert from_sdk(a2a_pb2.StreamResponse.FromString(wire), StreamResponse) == event


def test_what_no_parser_would_take_is_refused_where_it_is_written() -> None:
    with pytest.raises(InternalError, match="nested too deeply for protobuf"):
        fill(a2a_pb2.Part(), {"data": nested(MAX_JSON_DEPTH + 1, lists=False)})


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        (a2a_pb2.Message(), "messageId"),
        (a2a_pb2.Message(message_id="m", role=a2a_pb2.ROLE_USER), "parts"),
        (a2a_pb2.Message(message_id="m", role=a2a_pb2.ROLE_USER, parts=[a2a_pb2.Part()]), "parts[0]"),
        (a2a_pb2.Message(message_id="m", role=7, parts=[a2a_pb2.Part(text="x")]), "role"),  # pyright: ignore[reportArgumentType] — an open enum
    ],
)
def test_what_the_protocol_does_not_allow_is_refused_with_the_field(
    sent: a2a_pb2.Message, field: str
) -> None:
    with pytest.raises(InvalidParamsError) as caught:
        from_sdk(sent, Message)
    assert field in {violation.field for violation in caught.value.violations}


def test_a_number_that_json_has_not_is_refused() -> None:
    sent = a2a_pb2.Part()
    sent.data.number_value = float("nan")
    with pytest.raises(InvalidParamsError, match="not JSON"):
        from_sdk(sent, Part)


def test_members_that_the_sdk_does_not_know_are_left_out() -> None:
    assert fill(a2a_pb2.Part(), {"text": "x", "kind": "text"}) == a2a_pb2.Part(text="x")


def test_a_card_whose_schemes_are_not_of_the_protocols_form_is_refused() -> None:
    card = build_card(Settings(), "http://h/", {"key": {"apiKeySecurityScheme": {"location": 5}}})
    with pytest.raises(InternalError, match="location"):
        to_sdk(card, a2a_pb2.AgentCard)

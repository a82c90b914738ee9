"""The field types of the A2A objects: how a value is taken, checked, and written.

Source: the ProtoJSON mapping, with A2A 1.0.1's rules for timestamps (section 5.6.1).
"""

import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, TypeVar, cast

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, Field, PlainSerializer
from pydantic_core import PydanticCustomError

from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.wrappers.messages import join_surrogates

MAX_JSON_DEPTH = 30
"""Levels of lists and objects allowed in ``data`` and metadata: what every binding carries.

A parser of protobuf takes 100 messages within each other, of which an object is three; the official client's parser of
JSON gives up at 46 levels or so.
"""

T = TypeVar("T")


class Role(StrEnum):
    """The sender of a message, by JSON name."""

    USER = "ROLE_USER"
    AGENT = "ROLE_AGENT"


def _by_number(members: Mapping[int, StrEnum]) -> Callable[[object], object]:
    """Accept the proto's number for an enum; the enum refuses other values."""

    def look_up(value: object) -> object:
        # Not isinstance: True is an int, and is no role.
        return members.get(value, value) if type(value) is int else value

    return look_up


StateField = Annotated[
    TaskState,
    BeforeValidator(
        _by_number(
            {
                1: TaskState.SUBMITTED,
                2: TaskState.WORKING,
                3: TaskState.COMPLETED,
                4: TaskState.FAILED,
                5: TaskState.CANCELED,
                6: TaskState.INPUT_REQUIRED,
                7: TaskState.REJECTED,
                8: TaskState.AUTH_REQUIRED,
            }
        )
    ),
]
RoleField = Annotated[Role, BeforeValidator(_by_number({1: Role.USER, 2: Role.AGENT}))]


def _whole_text(value: object) -> object:
    return join_surrogates(value) if isinstance(value, str) else value


Text = Annotated[str, BeforeValidator(_whole_text)]
"""A str that UTF-8 can carry: lone surrogates become U+FFFD on the way in, so that `A2AModel.to_json` cannot fail."""

RequiredText = Annotated[str, Field(min_length=1), BeforeValidator(_whole_text)]
"""A `Text` that is not empty."""


def _plain_json(value: object, room: int = MAX_JSON_DEPTH) -> Any:
    """Copy a JSON value, so that a frozen model shares no object with its creator.

    Raises:
        PydanticCustomError: It is not JSON (other types, NaN, infinity) or nests deeper than ``room`` levels.
    """
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return join_surrogates(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        raise PydanticCustomError("not_json", "JSON has no NaN and no infinity")
    if not isinstance(value, dict | list | tuple):
        kind = type(value).__name__
        raise PydanticCustomError("not_json", "A value of type {kind} is not JSON", {"kind": kind})
    if not room:
        raise PydanticCustomError("too_deep", "Nested deeper than {limit} levels", {"limit": MAX_JSON_DEPTH})
    if isinstance(value, dict):
        items = cast("dict[object, object]", value).items()
        return {_json_key(key): _plain_json(member, room - 1) for key, member in items}
    return [_plain_json(member, room - 1) for member in cast("list[object] | tuple[object, ...]", value)]


def _json_key(key: object) -> str:
    if not isinstance(key, str):
        raise PydanticCustomError("not_json", "The names of a JSON object must be text")
    return join_surrogates(key)


JsonValue = Annotated[Any, AfterValidator(_plain_json)]
"""Any JSON value, at most `MAX_JSON_DEPTH` levels deep; copied on the way in (tuples become lists)."""

JsonObject = Annotated[dict[str, Any], AfterValidator(_plain_json)]
"""A JSON object, at most `MAX_JSON_DEPTH` levels deep; copied on the way in."""


def _date_and_time_only(value: object) -> object:
    # pydantic would also take seconds since 1970 and bare dates; the protocol has RFC 3339 alone.
    if isinstance(value, datetime) or (isinstance(value, str) and "T" in value.upper()):
        return value
    raise PydanticCustomError("timestamp", "A timestamp looks like 2025-10-28T10:30:00.000Z")


def _to_utc(value: datetime) -> datetime:
    try:
        value = value.astimezone(UTC)
    except OverflowError:
        raise PydanticCustomError("timestamp", "The timestamp is outside the years 1 to 9999") from None
    # JSON has milliseconds, so the value has, too: the round trip is exact.
    return value.replace(microsecond=value.microsecond // 1000 * 1000)


def _format_timestamp(value: datetime) -> str:
    return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")


Timestamp = Annotated[
    AwareDatetime,
    BeforeValidator(_date_and_time_only),
    AfterValidator(_to_utc),
    PlainSerializer(_format_timestamp, when_used="json", return_type=str),
]
"""An aware datetime in UTC, cut to milliseconds; ``YYYY-MM-DDTHH:mm:ss.sssZ`` in JSON, any offset accepted."""

HistoryLength = Annotated[int, Field(ge=0, le=2**31 - 1)]
"""The maximum number of messages, newest first; 0 for none."""


def not_empty(noun: str) -> AfterValidator:
    """Return a check for a required list; ``noun`` names its items in the error."""

    def check(value: tuple[T, ...]) -> tuple[T, ...]:
        if not value:
            raise PydanticCustomError("empty", "At least one {noun} is required", {"noun": noun})
        return value

    return AfterValidator(check)

"""The field types of the A2A models, with their validation and serialization.

Source: the ProtoJSON mapping; for timestamps, A2A 1.0.1, section 5.6.1.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, TypeVar, cast

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, Field, PlainSerializer
from pydantic_core import PydanticCustomError

from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.wrappers.messages import join_surrogates

MAX_JSON_DEPTH = 30
"""Maximum nesting depth of lists and objects in ``data`` and metadata. All bindings can transport this depth: a
protobuf parser accepts 100 nested messages, and each JSON object needs three. The JSON parser of the official client fails at
about 46 levels.
"""

T = TypeVar("T")


class Role(StrEnum):
    """The sender of a message. The values are the names in JSON."""

    USER = "ROLE_USER"
    AGENT = "ROLE_AGENT"


def _by_number(members: Mapping[int, StrEnum]) -> Callable[[object], object]:
    def look_up(value: object) -> object:
        # True is an instance of int.
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


def _join_text_surrogates(value: object) -> object:
    if type(value) is str and value.isascii():
        return value
    return join_surrogates(value) if isinstance(value, str) else value


Text = Annotated[str, AfterValidator(join_surrogates)]
"""A str that UTF-8 can encode, so that `A2AModel.to_json` cannot fail. Lone surrogates are replaced with U+FFFD."""

RequiredText = Annotated[str, Field(min_length=1), BeforeValidator(_join_text_surrogates)]
"""A `Text` that is not empty."""


_UNCHANGED = frozenset({type(None), bool, int})  # types whose values are not copied


def _plain_json(value: object, max_depth: int = MAX_JSON_DEPTH) -> Any:
    """Copy a JSON value. A frozen model must not share mutable objects with its creator.

    Raises:
        PydanticCustomError: The value is not JSON (other types, NaN, infinity), or nested too deeply.
    """
    if isinstance(value, str):
        return join_surrogates(value)
    if isinstance(value, dict | list | tuple):
        if not max_depth:
            limit = {"limit": MAX_JSON_DEPTH}
            raise PydanticCustomError("too_deep", "Nested deeper than {limit} levels", limit)
        if isinstance(value, dict):
            # Most names and members are ASCII texts or numbers, for which a call would take most of the time.
            return {
                name if type(name) is str and name.isascii() else _json_key(name): member
                if type(member) in _UNCHANGED or (type(member) is str and member.isascii())
                else _plain_json(member, max_depth - 1)
                for name, member in cast("dict[object, object]", value).items()
            }
        return [_plain_json(member, max_depth - 1) for member in cast("Sequence[object]", value)]
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        raise PydanticCustomError("not_json", "JSON has no NaN and no infinity")
    kind = type(value).__name__
    raise PydanticCustomError("not_json", "A value of type {kind} is not JSON", {"kind": kind})


def _json_key(key: object) -> str:
    if not isinstance(key, str):
        raise PydanticCustomError("not_json", "The names of a JSON object must be text")
    return join_surrogates(key)


JsonValue = Annotated[Any, AfterValidator(_plain_json)]
"""Any JSON value with at most `MAX_JSON_DEPTH` levels. The value is copied, and tuples become lists."""

JsonObject = Annotated[dict[str, Any], AfterValidator(_plain_json)]
"""A JSON object with at most `MAX_JSON_DEPTH` levels. The object is copied."""


def _date_and_time_only(value: object) -> object:
    # pydantic would also accept seconds since 1970, and dates without a time. The protocol allows only RFC 3339.
    if isinstance(value, datetime) or (isinstance(value, str) and "T" in value.upper()):
        return value
    raise PydanticCustomError("timestamp", "A timestamp looks like 2025-10-28T10:30:00.000Z")


def _to_utc(value: datetime) -> datetime:
    try:
        value = value.astimezone(UTC)
    except OverflowError:
        raise PydanticCustomError("timestamp", "The timestamp is outside the years 1 to 9999") from None
    # The JSON has milliseconds. An object read from its JSON must equal the original.
    return value.replace(microsecond=value.microsecond // 1000 * 1000)


def _format_timestamp(value: datetime) -> str:
    return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")


Timestamp = Annotated[
    AwareDatetime,
    BeforeValidator(_date_and_time_only),
    AfterValidator(_to_utc),
    PlainSerializer(_format_timestamp, when_used="json", return_type=str),
]
"""A datetime in UTC, truncated to milliseconds. The JSON format is ``YYYY-MM-DDTHH:mm:ss.sssZ``. Input with another
UTC offset is converted."""

HistoryLength = Annotated[int, Field(ge=0, le=2**31 - 1)]
"""Maximum number of messages to return, the newest ones; 0 for none."""


def not_empty(item_name: str) -> AfterValidator:
    """Return a validator that rejects an empty list. ``item_name`` is the word for an item in the error message."""

    def check(value: tuple[T, ...]) -> tuple[T, ...]:
        if not value:
            raise PydanticCustomError("empty", "At least one {noun} is required", {"noun": item_name})
        return value

    return AfterValidator(check)

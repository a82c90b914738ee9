"""Constructors of objects of the official SDK that accept arguments from before A2A 1.0.

Each constructor creates the object of A2A 1.0, and issues a `DeprecationWarning` for each older argument.
"""

import json
import warnings
from collections.abc import Callable, Mapping
from typing import Any, cast

from a2a.types import AgentInterface, AgentSkill
from google.protobuf.message import Message as ProtoMessage

Fields = dict[str, Any]
Conversion = tuple[str, Callable[[Fields, Any], None]]
"""The form of a keyword argument in A2A 1.0, and a function that sets fields of 1.0 from the value of the argument."""


class OlderObject:
    """A class of the SDK that also accepts the keyword arguments from before A2A 1.0.

    Calls return objects of the SDK's class.

    Args:
        kind: The SDK's class.
        conversions: Conversions by keyword argument; None for none.
        enums: Enums by field, for fields that accept older values as strings; None for none.
    """

    def __init__(
        self,
        kind: type[ProtoMessage],
        conversions: Mapping[str, Conversion] | None = None,
        enums: Mapping[str, "OlderEnum"] | None = None,
    ) -> None:
        fields = cast("Any", kind.DESCRIPTOR).fields
        self._kind: Any = kind
        self._enums = enums or {}
        self._known = {field.name for field in fields}
        self._conversions = {
            **{field.json_name: renamed(field.name) for field in fields if field.json_name != field.name},
            **(conversions or {}),
        }

    def __call__(self, *args: Any, **members: Any) -> Any:
        """Return an object of the SDK's class.

        Raises:
            TypeError: A keyword argument exists neither in A2A 1.0 nor before it.
            ValueError: An enum has no such value.
        """
        fields = {name: value for name, value in members.items() if name in self._known}
        for name in members.keys() - fields.keys():
            if name not in self._conversions:
                known = ", ".join(sorted(self._known))
                raise TypeError(f"{self._kind.__name__} has no {name!r} in A2A 1.0; it has {known}")
        for name, value in members.items():
            if name not in self._known:
                form, convert = self._conversions[name]
                warn_older(f"{self._kind.__name__}({name}=…)", form)
                convert(fields, value)
        for name, enum in self._enums.items():
            value = fields.get(name)
            if isinstance(value, str):
                fields[name] = enum.number_of(value, f"{self._kind.__name__}({name}={value!r})", frames=3)
        return self._kind(*args, **fields)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kind, name)

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, self._kind)

    def __or__(self, other: Any) -> Any:
        return self._kind | other

    def __ror__(self, other: Any) -> Any:
        return other | self._kind

    def __repr__(self) -> str:
        return repr(self._kind)


class OlderEnum:
    """An SDK enum that also has the names and values from before A2A 1.0: ``TaskState.completed``, ``Role("agent")``.

    Args:
        wrapper: The SDK's enum.
        prefix: Prefix of the names in A2A 1.0.
        renamed: Names in A2A 1.0 without the prefix, by older names that differ in more than case.
    """

    def __init__(self, wrapper: Any, prefix: str, renamed: Mapping[str, str]) -> None:
        self._wrapper = wrapper
        self._prefix = prefix
        self._renamed = renamed
        self._title: str = wrapper.DESCRIPTOR.name

    def __call__(self, value: str | int) -> int:
        """Return the number of a value: an older value such as ``"input-required"``, a name of A2A 1.0, or a number.

        Raises:
            ValueError: The enum has no such value.
        """
        return self.number_of(value, f"{self._title}({value!r})", frames=3)

    def __getattr__(self, name: str) -> Any:
        number = self._number(name, f"{self._title}.{name}", frames=3) if name.islower() else None
        return getattr(self._wrapper, name) if number is None else number

    def number_of(self, value: str | int, older: str, frames: int) -> int:
        """Return the number of a value. For an older value, issue the warning of `warn_older`.

        Raises:
            ValueError: The enum has no such value.
        """
        for name, number in self._wrapper.items():
            if value in (name, number):
                return number
        number = self._number(str(value).replace("-", "_"), older, frames + 1)
        if number is None:
            raise ValueError(f"{self._title} has no {value!r}; it has {', '.join(self._wrapper.keys())}")
        return number

    def _number(self, name: str, older: str, frames: int) -> int | None:
        current = f"{self._prefix}{self._renamed.get(name, name.upper())}"
        if current not in self._wrapper.keys():
            return None
        warn_older(older, f"use {self._title}.{current}", frames)
        return self._wrapper.Value(current)

    def __repr__(self) -> str:
        return f"<enum {self._title}>"


def warn_older(older: str, current: str, frames: int = 2) -> None:
    """Issue a warning about a form from before A2A 1.0.

    Args:
        older: The older form.
        current: The form of A2A 1.0.
        frames: The number of stack frames from this function to the code with the older form.
    """
    warnings.warn(f"{older} is from before A2A 1.0: {current}", DeprecationWarning, stacklevel=frames + 1)


def renamed(name: str) -> Conversion:
    """Return the conversion of an argument that has another name in A2A 1.0."""

    def convert(fields: Fields, value: Any) -> None:
        fields.setdefault(name, value)

    return f"use {name}=", convert


def _drop(_fields: Fields, _value: Any) -> None:
    """Ignore the value of an argument that A2A 1.0 does not have."""


def _add_interface(fields: Fields, url: str) -> None:
    interface = AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version="1.0")
    fields["supported_interfaces"] = [interface, *fields.get("supported_interfaces", ())]


def _add_schema(label: str) -> Callable[[Fields, Any], None]:
    def convert(fields: Fields, schema: Any) -> None:
        lines = [fields.get("description", ""), f"{label} (JSON Schema): {json.dumps(schema)}"]
        fields["description"] = "\n\n".join(filter(None, lines))

    return convert


CARD: Mapping[str, Conversion] = {
    "url": (
        'use supported_interfaces=[AgentInterface(url=…, protocol_binding="JSONRPC", protocol_version="1.0")]',
        _add_interface,
    )
}
"""Conversions of arguments of ``AgentCard``."""

_IN_DESCRIPTION = f"{AgentSkill.DESCRIPTOR.name} has no schemas; the description holds it now"

SKILL: Mapping[str, Conversion] = {
    "inputSchema": (_IN_DESCRIPTION, _add_schema("Input")),
    "input_schema": (_IN_DESCRIPTION, _add_schema("Input")),
    "outputSchema": (_IN_DESCRIPTION, _add_schema("Output")),
    "output_schema": (_IN_DESCRIPTION, _add_schema("Output")),
}
"""Conversions of arguments of ``AgentSkill``."""

_NO_CAPABILITY = "there is no such capability; it is left out"

CAPABILITIES: Mapping[str, Conversion] = dict.fromkeys(
    ("stateManagement", "state_management", "stateTransitionHistory", "state_transition_history"),
    (_NO_CAPABILITY, _drop),
)
"""Conversions of arguments of ``AgentCapabilities``."""

PROVIDER: Mapping[str, Conversion] = {"name": renamed("organization")}
"""Conversions of arguments of ``AgentProvider``."""


def _unwrap_root(fields: Fields, part: ProtoMessage) -> None:
    for field, value in part.ListFields():
        fields.setdefault(field.name, value)


PART: Mapping[str, Conversion] = {"root": ("a part has no root; use the part by itself", _unwrap_root)}
"""Conversions of arguments of ``Part``: ``root`` contained a part of a specific kind."""

KIND: Mapping[str, Conversion] = {"kind": ("the members of an object state its kind; leave kind= out", _drop)}
"""Conversions of the argument ``kind``, which A2A 0.3 has in tasks and messages."""

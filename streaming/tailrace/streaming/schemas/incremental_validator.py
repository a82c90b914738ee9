"""Validator that checks the text of a JSON value against a schema while the text arrives.

See `tailrace.streaming.schemas.schema_shapes` for shapes and alternatives.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tailrace.streaming.schemas.schema_shapes import SchemaShapes, Shape, is_equal

_SPACE = re.compile(r"[ \t\n\r]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')  # characters of a string without escapes
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_PARTIAL_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_LETTERS = re.compile("[a-z]+")
_NUMBER_CHARACTERS = re.compile(r"[-+.0-9eE]+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?\Z")
_PARTIAL_NUMBER = re.compile(
    r"-?(?:0|[1-9][0-9]*)?\Z|-?(?:0|[1-9][0-9]*)(?:\.[0-9]*|(?:\.[0-9]+)?[eE][-+]?[0-9]*)\Z"
)
_LITERALS = {"t": "true", "f": "false", "n": "null"}
_VALUES: dict[str, Any] = {"true": True, "false": False, "null": None}
_KINDS = {
    '"': "string",
    "{": "object",
    "[": "array",
    "t": "boolean",
    "f": "boolean",
    "n": "null",
    "-": "number",
}

_MAX_DEPTH = 500
_MAX_NUMBER = 1000  # characters of a number
# Maximum number of alternatives of a value, and maximum sum of their `Shape.size`. Above them, any value is accepted.
_MAX_STATES = 256
_MAX_SIZE = 5_000

# An alternative of a value: its shape, and the position in `_Container.states` of the alternative that contains it.
_State = tuple[int, Shape]


@dataclass
class _Container:
    """An object or an array that is incomplete.

    Attributes:
        states: The alternatives that are still possible.
        path: The path in the complete value, for messages. It contains only names that are in the schema.
    """

    states: list[_State]
    is_object: bool
    path: str
    names: set[str] = field(default_factory=set[str])
    name: str = ""
    count: int = 0


class IncrementalValidator:
    """Checks a JSON text against a schema, delta by delta.

    A text is rejected as soon as no continuation of it can match the schema. Only types, names of members, required members,
    constants and enumerations are checked. No valid text is rejected, except values that are nested more than 500 levels deep,
    and numbers of more than 1,000 characters.

    Args:
        schema: A valid JSON schema, or its shapes.
    """

    def __init__(self, schema: Mapping[str, Any] | SchemaShapes) -> None:
        shapes = schema if isinstance(schema, SchemaShapes) else SchemaShapes(schema)
        self._any = SchemaShapes({}).roots[0]
        self._stack: list[_Container] = []
        self._next = "value"  # the expected token: value, first item, first name, name, colon, comma or end
        self._states: list[_State] = []  # of the next or current value
        self._set_states([shapes.roots])
        self._token = ""  # kind of the incomplete string, name, number or literal
        self._fragments: list[str] = []
        self._keeps = False  # the text of the current string is needed
        self._rest = ""  # an incomplete escape

    def feed(self, text: str) -> None:
        """Check the next text.

        Raises:
            ValueError: No continuation of the text can match the schema. The message does not quote the text.
        """
        text = self._rest + text
        self._rest = ""
        position = 0
        while position < len(text):
            position = self._continue(text, position) if self._token else self._begin(text, position)
        if self._token:
            self._check_partial()

    def close(self) -> None:
        """Check that the text is complete.

        Raises:
            ValueError: The text is incomplete, or does not match the schema.
        """
        if self._token in ("number", "literal"):
            self._end_scalar()
        if self._token or self._next != "end":
            raise ValueError("the JSON value is incomplete")

    # Tokens

    def _begin(self, text: str, position: int) -> int:
        space = _SPACE.match(text, position)
        position = space.end() if space else position
        if position == len(text):
            return position
        character = text[position]
        expected = self._next
        if expected == "value" or (expected == "first item" and character != "]"):
            if expected == "first item":
                self._begin_item()
            self._begin_value(character)
        elif expected in ("name", "first name") and character == '"':
            self._token, self._fragments, self._keeps = "name", [], True
        elif expected == "colon" and character == ":":
            self._next = "value"
        elif expected == "comma" and character == ",":
            self._after_comma()
        elif (expected == "first item" and character == "]") or (
            expected in ("first name", "comma") and self._stack and character == self._closing()
        ):
            self._end_container()
        else:
            raise ValueError(f"the text is not valid JSON{self._location()}")
        return position if self._token in ("number", "literal") else position + 1

    def _continue(self, text: str, position: int) -> int:
        if self._token in ("string", "name"):
            return self._continue_string(text, position)
        if self._token == "number":  # noqa: S105 — not a password
            match = _NUMBER_CHARACTERS.match(text, position)
        else:
            match = _LETTERS.match(text, position)
        if match is None:
            self._end_scalar()
            return position
        self._fragments.append(match.group())
        return match.end()

    def _continue_string(self, text: str, position: int) -> int:
        plain = _PLAIN.match(text, position)
        if plain is not None:
            if self._keeps:
                self._fragments.append(plain.group())
            return plain.end()
        if text[position] == '"':
            self._end_string()
            return position + 1
        escape = _ESCAPE.match(text, position)
        if escape is not None:
            if self._keeps:
                self._fragments.append(escape.group())
            return escape.end()
        if _PARTIAL_ESCAPE.match(text, position):
            self._rest = text[position:]
            return len(text)
        raise ValueError(f"the text is not valid JSON{self._location()}")

    def _end_string(self) -> None:
        token, self._token = self._token, ""
        container = self._stack[-1] if self._stack else None
        if token == "name":  # noqa: S105
            assert container is not None  # noqa: S101 — names are in objects
            container.name = self._text()
            container.names.add(container.name)
            self._begin_member(container)
            self._next = "colon"
            return
        if self._keeps:
            self._keep_constants(self._text())
        self._end_value()

    def _end_scalar(self) -> None:
        token, self._token = self._token, ""
        text = "".join(self._fragments)
        if token == "number":  # noqa: S105
            if not _NUMBER.match(text) or len(text) > _MAX_NUMBER:
                raise ValueError(f"the text is not valid JSON{self._location()}")
            value: Any = json.loads(text)
        elif text in _VALUES:
            value = _VALUES[text]
        else:
            raise ValueError(f"the text is not valid JSON{self._location()}")
        self._keep_constants(value)
        self._end_value()

    def _check_partial(self) -> None:
        if self._token == "number":  # noqa: S105
            text = "".join(self._fragments)
            if not _PARTIAL_NUMBER.match(text) or len(text) > _MAX_NUMBER:
                raise ValueError(f"the text is not valid JSON{self._location()}")
        elif self._token == "literal":  # noqa: S105
            text = "".join(self._fragments)
            if text and not _LITERALS[text[0]].startswith(text):
                raise ValueError(f"the text is not valid JSON{self._location()}")
        elif self._token == "name":  # noqa: S105
            container = self._stack[-1]
            if all(shape.names is not None for _, shape in container.states):
                prefix = self._text()
                if not any(
                    name.startswith(prefix) for _, shape in container.states for name in shape.names or ()
                ):
                    raise ValueError(f"a member is not in the schema{self._location()}")
        elif all(shape.constants is not None for _, shape in self._states):
            prefix = self._text()
            values = [value for _, shape in self._states for value in shape.constants or ()]
            if not any(isinstance(value, str) and value.startswith(prefix) for value in values):
                raise ValueError(f"a value is not one of the schema{self._location()}")

    def _text(self) -> str:
        """Return the string so far, without half of a surrogate pair at its end."""
        text: str = json.loads(f'"{"".join(self._fragments)}"')
        return text[:-1] if self._token and text and "\ud800" <= text[-1] <= "\udbff" else text

    # Values

    def _begin_value(self, character: str) -> None:
        kind = "number" if character.isascii() and character.isdigit() else _KINDS.get(character)
        if kind is None:
            raise ValueError(f"the text is not valid JSON{self._location()}")
        states = [state for state in self._states if kind in state[1].kinds]
        if not states:
            raise ValueError(f"a value has a type that the schema does not allow{self._location()}")
        self._states = states
        if kind in ("object", "array"):
            if len(self._stack) == _MAX_DEPTH:
                raise ValueError(f"the JSON value is nested more than {_MAX_DEPTH} levels deep")
            self._stack.append(_Container(states, kind == "object", self._path()))
            self._next = "first name" if kind == "object" else "first item"
        else:
            self._token = kind if kind in ("string", "number") else "literal"
            self._fragments = []
            self._keeps = any(shape.constants is not None for _, shape in states)

    def _begin_member(self, container: _Container) -> None:
        states = container.states
        allowed = [state for state in states if state[1].names is None or container.name in state[1].names]
        if not allowed:
            raise ValueError(f"a member is not in the schema{self._location()}")
        container.states = allowed
        self._set_states([shape.member(container.name) for _, shape in allowed])

    def _begin_item(self) -> None:
        container = self._stack[-1]
        self._set_states([shape.item(container.count) for _, shape in container.states])
        container.count += 1

    def _set_states(self, alternatives: Sequence[tuple[Shape, ...]]) -> None:
        states = [(position, shape) for position, shapes in enumerate(alternatives) for shape in shapes]
        if len(states) > _MAX_STATES or sum(shape.size for _, shape in states) > _MAX_SIZE:
            states = [(position, self._any) for position in range(len(alternatives))]
        self._states = states

    def _keep_constants(self, value: Any) -> None:
        self._states = [
            state
            for state in self._states
            if state[1].constants is None or any(is_equal(value, each) for each in state[1].constants)
        ]
        if not self._states:
            raise ValueError(f"a value is not one of the schema{self._location()}")

    def _end_container(self) -> None:
        container = self._stack.pop()
        states = container.states
        if container.is_object:
            states = [state for state in states if state[1].required <= container.names]
            if not states:
                raise ValueError(f"a required member is missing{container.path and f' at {container.path}'}")
        self._states = states
        self._end_value()

    def _end_value(self) -> None:
        """Keep only the alternatives of the container that the value matches."""
        if not self._stack:
            self._next = "end"
            return
        container = self._stack[-1]
        positions = dict.fromkeys(position for position, _ in self._states)
        container.states = [container.states[position] for position in positions]
        self._next = "comma"

    def _after_comma(self) -> None:
        if self._stack[-1].is_object:
            self._next = "name"
        else:
            self._begin_item()
            self._next = "value"

    def _closing(self) -> str:
        return "}" if self._stack[-1].is_object else "]"

    def _path(self) -> str:
        """Return the path of the current value, with asterisks for names that are not in the schema."""
        if not self._stack:
            return ""
        container = self._stack[-1]
        if not container.is_object:
            return f"{container.path}/{max(0, container.count - 1)}"
        known = any(shape.knows(container.name) for _, shape in container.states)
        return f"{container.path}/{container.name if known else '*'}"

    def _location(self) -> str:
        path = self._path() if self._next in ("value", "first item") else ""
        if not path and self._stack:
            path = self._stack[-1].path
        return f" at {path}" if path else ""

"""Answers that are JSON: what a model is asked for, and reading what it gave."""

import json
import re
from collections.abc import Callable
from typing import Any, cast

import pydantic
from pydantic.json_schema import GenerateJsonSchema

from tailrace.wrappers import ConfigurationError
from tailrace.wrappers.loose_json import read_json
from tailrace.wrappers.options import OutputFormat

_MAX_SIZE = 20_000  # parts of a caller's schema; beyond it an answer may take long to be held against it
_MAX_TOLD = 1_000  # parts of a schema whose faults can be told quickly
_MAX_LEVELS = 200

_MAX_BACKTRACKS = 100_000
"""A caller's pattern may be made so that it takes for ever."""

_FENCED = re.compile(r"\s*```(?:json)?[ \t]*\n(.*)\n\s*```\s*", re.DOTALL | re.IGNORECASE)


class PlainSchema(GenerateJsonSchema):
    """The JSON schema of a type as every provider takes it.

    Objects say that they have no further members: some providers refuse those that do not. Titles that pydantic makes of
    names tell a model nothing and cost tokens, and are left out.
    """

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Never."""
        return False

    def model_schema(self, schema: Any) -> dict[str, Any]:
        """Of a pydantic model."""
        return _closed(super().model_schema(schema))

    def dataclass_schema(self, schema: Any) -> dict[str, Any]:
        """Of a dataclass."""
        return _closed(super().dataclass_schema(schema))

    def typed_dict_schema(self, schema: Any) -> dict[str, Any]:
        """Of a ``TypedDict``."""
        return _closed(super().typed_dict_schema(schema))


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    return {"additionalProperties": False, **schema} if "properties" in schema else schema


class OutputReader:
    """Reads an answer that was to be of some form.

    Args:
        form: What the model is asked for.
        validate: Gives the object for a JSON value; raises a ValueError that says what does not fit.

    Attributes:
        format: As given.
    """

    def __init__(self, form: OutputFormat, validate: Callable[[Any], object]) -> None:
        self.format = form
        self._validate = validate

    @classmethod
    def of_type(cls, output_type: Any) -> "OutputReader":
        """For any type that pydantic knows.

        Raises:
            ConfigurationError: No JSON schema can be made of it.
        """
        name = getattr(output_type, "__name__", "output")
        try:
            adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(output_type)
            schema = adapter.json_schema(schema_generator=PlainSchema)
        except pydantic.errors.PydanticUserError as error:
            raise ConfigurationError(f"output type {name}: {error.message}") from error
        if "$ref" in schema:
            # A type that holds itself; providers want the object itself on top.
            name_of_it = str(schema.pop("$ref")).rpartition("/")[2]
            schema = {**schema["$defs"][name_of_it], **schema}
        wrapped = schema.get("type") != "object"
        if wrapped:
            # Providers take the schema of an object only.
            definitions = {"$defs": schema.pop("$defs")} if "$defs" in schema else {}
            properties = {"result": schema}
            schema = (
                _closed({"type": "object", "properties": properties, "required": ["result"]}) | definitions
            )

        def validate(value: Any) -> object:
            if wrapped and isinstance(value, dict):
                # A model that nothing holds to the schema may leave the wrapping out.
                value = cast("dict[str, Any]", value).get("result", cast("Any", value))
            try:
                # As JSON: a date, for example, is text there.
                return adapter.validate_json(json.dumps(value))
            except pydantic.ValidationError as error:
                raise ValueError(_problems(error)) from None

        description = str(schema.get("description", ""))
        return cls(OutputFormat(schema_=schema, name=_plain_name(name), description=description), validate)

    @classmethod
    def of_format(cls, form: OutputFormat) -> "OutputReader":
        """For a JSON schema; for any JSON object where the format has none.

        The schema may be anybody's: what it refers to outside of itself is not fetched.

        Raises:
            ValueError: It is no JSON schema.
        """
        if form.schema_ is None:
            return cls(form, _any_object)
        size, recursive = schema_size(form.schema_)
        if size > _MAX_SIZE:
            raise ValueError(
                f"the output's schema is too large: with all that it refers to it has more than {_MAX_SIZE} parts"
            )
        import jsonschema_rs  # here, as many a server never needs it

        # All that is wrong is collected before the first of it is given; of many branches that takes for ever.
        tells = size <= _MAX_TOLD and not recursive
        try:
            validator = jsonschema_rs.validator_for(
                form.schema_,
                pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=_MAX_BACKTRACKS),
                retriever=_fetch_nothing,
            )
        except ValueError as error:
            raise ValueError(f"the output's schema is no JSON schema: {_said(error)}") from None

        def validate(value: Any) -> object:
            if validator.is_valid(value):
                return value
            problem = next(validator.iter_errors(value), None) if tells else None
            if problem is None:
                raise ValueError("it does not fit the schema")
            where = ".".join(map(str, problem.instance_path))
            raise ValueError(f"{where}: {_said(problem)}" if where else _said(problem))

        return cls(form, validate)

    def read(self, text: str) -> object:
        """The object that an answer stands for; code fences around it do not count.

        Raises:
            ValueError: It is not JSON, or not of the form.
        """
        fenced = _FENCED.fullmatch(text)
        try:
            value = read_json((fenced[1] if fenced else text).encode())
        except (ValueError, RecursionError) as error:
            raise ValueError(f"the answer is not the JSON that was asked for: {error}") from None
        try:
            return self._validate(value)
        except ValueError as error:
            raise ValueError(f"the answer is not of the form that was asked for: {error}") from None


def schema_size(schema: object) -> tuple[int, bool]:
    """How many parts a schema has with all that it refers to, each as often as it is referred to; whether it recurs.

    What refers to itself is counted once. The count ends at a bound.
    """
    sizes: dict[str, int | None] = {}  # None while it is being counted
    recursive = False

    def count(part: object, depth: int) -> int:
        nonlocal recursive
        if isinstance(part, list):
            members = cast("list[object]", part)
        elif isinstance(part, dict):
            fields = cast("dict[str, object]", part)
            members = [value for name, value in fields.items() if name not in ("$defs", "definitions")]
            for name in ("$ref", "$dynamicRef", "$recursiveRef"):
                if isinstance(target := fields.get(name), str):
                    members.append(_Reference(target))
        elif isinstance(part, _Reference):
            if part.target not in sizes:
                sizes[part.target] = None
                sizes[part.target] = count(_found(schema, part.target), depth + 1)
            size = sizes[part.target]
            recursive = recursive or size is None
            return size or 1
        else:
            return 1
        if depth > _MAX_LEVELS:
            return _MAX_SIZE + 1
        total = 1
        for member in members:
            total += count(member, depth + 1)
            if total > _MAX_SIZE:
                break
        return total

    return count(schema, 0), recursive


class _Reference:
    def __init__(self, target: str) -> None:
        self.target = target


def _found(schema: object, target: str) -> object:
    """What a reference inside a schema stands for; None for any other, which is refused elsewhere."""
    found = schema
    if target.startswith("#/"):
        for step in target[2:].split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict):
                return None
            found = cast("dict[str, object]", found).get(name)
        return found
    return schema if target == "#" else None


def _fetch_nothing(uri: str) -> Any:
    raise ValueError(f"it refers to {uri}, which is not in it")


def _said(error: Exception) -> str:
    """What is wrong, in one line; the rest shows schema and value."""
    return str(getattr(error, "message", error)).partition("\n")[0]


def _any_object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    return cast("dict[str, Any]", value)


def _problems(error: pydantic.ValidationError) -> str:
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in problems)


def _plain_name(name: str) -> str:
    """A name that every provider takes for a schema."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64] or "output"

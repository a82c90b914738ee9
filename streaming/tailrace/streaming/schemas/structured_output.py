"""Structured output: creation of the JSON schema for a request, and parsing of the response."""

import json
import re
from collections.abc import Callable
from typing import Any, cast

import pydantic
from pydantic.json_schema import GenerateJsonSchema

from tailrace.streaming.schemas.schema_bounds import (
    MAX_SIZE,
    PATTERN_SIZE,
    check_patterns,
    check_values,
    count_values,
    schema_size,
    schema_width,
)
from tailrace.wrappers import ConfigurationError
from tailrace.wrappers.messages import clipped
from tailrace.wrappers.request_options import OutputFormat

_MAX_EXPLAINED = 1_000  # maximum number of parts of a schema for detailed error messages
_MAX_VALUES = 100_000  # maximum number of JSON values in a response
_MAX_WORK = 500_000  # maximum of keywords times values, which take up to 0.1 microseconds each
_MAX_EXPLAINED_WORK = 20_000
_MAX_MESSAGE = 500  # maximum number of characters of an error message


class PlainSchema(GenerateJsonSchema):
    """Generator of JSON schemas with closed objects and without derived titles.

    Some providers require ``additionalProperties: false`` in objects. Titles that pydantic derives from names cost tokens.
    """

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Return False, so that no titles are generated."""
        return False

    def model_schema(self, schema: Any) -> dict[str, Any]:
        """Generate the schema of a pydantic model with ``additionalProperties: false``."""
        return _closed(super().model_schema(schema))

    def dataclass_schema(self, schema: Any) -> dict[str, Any]:
        """Generate the schema of a dataclass with ``additionalProperties: false``."""
        return _closed(super().dataclass_schema(schema))

    def typed_dict_schema(self, schema: Any) -> dict[str, Any]:
        """Generate the schema of a ``TypedDict`` with ``additionalProperties: false``."""
        return _closed(super().typed_dict_schema(schema))


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    return {"additionalProperties": False, **schema} if "properties" in schema else schema


class OutputReader:
    """Parser of structured responses.

    Args:
        output_format: The output format of the request.
        validate: Function that converts a JSON value to the result. It raises a ValueError with the reason if the value does not
            match the format.
    """

    def __init__(self, output_format: OutputFormat, validate: Callable[[Any], object]) -> None:
        self.format = output_format
        self._validate = validate

    @classmethod
    def of_type(cls, output_type: Any) -> "OutputReader":
        """Create a reader for any type that pydantic supports.

        Raises:
            ConfigurationError: The type has no JSON schema.
        """
        name = getattr(output_type, "__name__", "output")
        try:
            adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(output_type)
            schema = adapter.json_schema(schema_generator=PlainSchema)
        except pydantic.errors.PydanticUserError as error:
            raise ConfigurationError(f"output type {name}: {error.message}") from error
        if "$ref" in schema:
            # The type is recursive. Providers require an object at the top level of the schema.
            definition_name = str(schema.pop("$ref")).rpartition("/")[2]
            schema = {**schema["$defs"][definition_name], **schema}
        wrapped = schema.get("type") != "object"
        if wrapped:
            # Providers accept only schemas of objects.
            definitions = {"$defs": schema.pop("$defs")} if "$defs" in schema else {}
            properties = {"result": schema}
            schema = (
                _closed({"type": "object", "properties": properties, "required": ["result"]}) | definitions
            )

        def validate(value: Any) -> object:
            if wrapped and isinstance(value, dict):
                # Models may omit the wrapper object.
                value = cast("dict[str, Any]", value).get("result", cast("Any", value))
            try:
                # As JSON, dates and other values are strings.
                return adapter.validate_json(json.dumps(value))
            except pydantic.ValidationError as error:
                raise ValueError(_problems(error)) from None

        description = str(schema.get("description", ""))
        return cls(OutputFormat(schema_=schema, name=_plain_name(name), description=description), validate)

    @classmethod
    def of_format(cls, output_format: OutputFormat) -> "OutputReader":
        """Create a reader for the JSON schema of a format; for any JSON object if the format has no schema.

        Raises:
            ValueError: The schema is not a valid JSON schema, is too large, or has an unsupported pattern or an external
                reference. External references are not fetched, because the schema may come from a caller.
        """
        if output_format.schema_ is None:
            return cls(output_format, _any_object)
        check_values(output_format.schema_)
        size, recursive = schema_size(output_format.schema_)
        if size > MAX_SIZE:
            raise ValueError(
                f"the schema is too large: with all that it refers to it has more than {MAX_SIZE} parts"
            )
        check_patterns(output_format.schema_)
        width = schema_width(output_format.schema_, recursive=recursive)
        import jsonschema_rs  # imported here, because many servers never need it

        # The validator collects all errors before it returns the first one. For a schema with many branches, this takes very
        # long. Errors are therefore explained only for small schemas.
        is_explained = size <= _MAX_EXPLAINED and not recursive
        try:
            validator = jsonschema_rs.validator_for(
                output_format.schema_,
                pattern_options=jsonschema_rs.RegexOptions(
                    size_limit=PATTERN_SIZE, dfa_size_limit=PATTERN_SIZE
                ),
                retriever=_fetch_nothing,
            )
        except ValueError as error:
            raise ValueError(
                f"the output's schema is not a JSON schema: {_message_of(error)}{_hint(error)}"
            ) from None

        def validate(value: Any) -> object:
            work = width * count_values(value)
            if work > _MAX_WORK:
                raise ValueError(
                    f"it is too large to be checked: {work // width} values, to each of which up to {width} keywords "
                    "of the schema apply"
                )
            if validator.is_valid(value):
                return value
            problem = (
                next(validator.iter_errors(value), None)
                if is_explained and work <= _MAX_EXPLAINED_WORK
                else None
            )
            if problem is None:
                raise ValueError("it does not fit the schema")
            path = ".".join(map(str, problem.instance_path))
            raise ValueError(f"{path}: {_message_of(problem)}" if path else _message_of(problem))

        return cls(output_format, validate)

    def validate(self, value: object) -> object:
        """Validate a JSON value, and convert it to the result.

        Raises:
            ValueError: The value does not match the format.
        """
        return self._validate(value)

    def read(self, text: str) -> object:
        """Parse the text of a response. A code fence around the text is ignored.

        Raises:
            ValueError: The text is not valid JSON, is too large, or does not match the format.
        """
        text = _unfenced(text)
        if sum(map(text.count, ",[{")) > _MAX_VALUES:
            raise ValueError(f"the response has more than {_MAX_VALUES} JSON values")
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"the response is not valid JSON: {error}") from None
        try:
            return self._validate(value)
        except ValueError as error:
            raise ValueError(f"the response does not match the requested schema: {error}") from None


def _unfenced(text: str) -> str:
    stripped = text.strip()
    first, newline, rest = stripped.partition("\n")
    if not (newline and first[:3] == "```" and first[3:].strip().lower() in ("", "json")):
        return text
    inner = rest.removesuffix("```")
    end = inner.rstrip()
    return end if inner != rest and "\n" in inner[len(end) :] else text


def _fetch_nothing(uri: str) -> Any:
    raise ValueError(f"it refers to {uri}, which is not in it")


def _message_of(error: Exception) -> str:
    """Return the first line of an error message. The other lines repeat the schema and the value."""
    return clipped(str(getattr(error, "message", error)).partition("\n")[0], _MAX_MESSAGE)


def _hint(error: Exception) -> str:
    if not _message_of(error).endswith('is not a "regex"'):
        return ""
    return " (look-around, back-references and very large repetitions are not supported)"


def _any_object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return cast("dict[str, Any]", value)


def _problems(error: pydantic.ValidationError) -> str:
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in problems)


def _plain_name(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64] or "output"

"""Values that fit a JSON schema of the OpenAPI description: the grammar of bodies and parameters."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, cast

_DEPTH = 6  # beyond this depth, only required members
_TEXTS = (
    "text",
    "",
    "fuzz-context-000000",
    "text/plain",
    "2026-01-01T00:00:00Z",
    "ROLE_USER",
    "user",
    "0",
    "é😀",
)


class Grammar:
    """Generates values.

    Args:
        description: The OpenAPI description, whose components the schemas refer to.
    """

    def __init__(self, description: Mapping[str, Any]) -> None:
        self._schemas: Mapping[str, Any] = description["components"]["schemas"]

    def value(self, schema: Mapping[str, Any], rng: Random, depth: int = 0) -> Any:
        """Return a value that fits the schema, except for constraints that only a validator can check."""
        if "$ref" in schema:
            return self.value(self._schemas[schema["$ref"].rpartition("/")[2]], rng, depth)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return rng.choice(schema["enum"])
        for name in ("anyOf", "oneOf"):
            if name in schema:
                chosen = rng.choice(schema[name])
                return self.value({**_without(schema, name), **chosen}, rng, depth)
        kind: object = schema.get("type")
        if isinstance(kind, list):
            kind = rng.choice(cast("Sequence[str]", kind))
        if kind == "object" or "properties" in schema:
            return self._object(schema, rng, depth)
        if kind == "array":
            count = rng.choice((0, 1, 1, 2)) if depth < _DEPTH else 0
            items = schema.get("items", {})
            return [self.value(items, rng, depth + 1) for _ in range(max(count, schema.get("minItems", 0)))]
        if kind == "integer":
            return rng.choice((0, 1, 2, 50, -1, 2**31, 2**63))
        if kind == "number":
            return rng.choice((0, 1, 0.5, -1.5, 1e300))
        if kind == "boolean":
            return rng.random() < 0.5
        if kind == "null":
            return None
        if kind == "string":
            return rng.choice(_TEXTS)
        return rng.choice((None, True, 0, "text", [], {}, {"a": [1, {"b": "c"}]}))

    def _object(self, schema: Mapping[str, Any], rng: Random, depth: int) -> dict[str, Any]:
        required = schema.get("required", ())
        found: dict[str, Any] = {}
        for name, member in schema.get("properties", {}).items():
            if name in required or (depth < _DEPTH and rng.random() < 0.5):
                found[name] = self.value(member, rng, depth + 1)
        more = schema.get("additionalProperties")
        if isinstance(more, Mapping) and depth < _DEPTH and rng.random() < 0.3:
            found["other"] = self.value(cast("Mapping[str, Any]", more), rng, depth + 1)
        return found


def _without(schema: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {
        key: value for key, value in schema.items() if key not in (name, "default", "title", "description")
    }

"""Merging of a model's parameters with the members of one request.

The ``parameters`` of a model client are sent with every request. `HTTPModel` merges them with the members for the options of a
request.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from tailrace.wrappers.request_options import ToolDefinition

# Names are compared without case and underscores: Google accepts both ``generationConfig`` and ``generation_config``, but
# not both of them in one request.
_TOOLS = frozenset({"functiondeclarations", "tools"})

# Objects that are replaced as a whole.
_ATOMIC = frozenset(
    {
        "format",
        "functioncallingconfig",
        "responseformat",
        "responsejsonschema",
        "responseschema",
        "textformat",
        "thinking",
        "toolchoice",
    }
)

# Members that exclude each other. A member of the request removes parameters of its group.
_EXCLUSIVE: Mapping[str, frozenset[str]] = {
    name: rivals - {name}
    for rivals in (
        frozenset({"maxcompletiontokens", "maxtokens"}),
        frozenset({"responsejsonschema", "responseschema"}),
        frozenset({"thinkingbudget", "thinkinglevel"}),
        frozenset({"functioncall", "toolchoice"}),
    )
    for name in rivals
}

# Members of a tool definition that may contain its name.
_NESTED = ("function", "custom", "toolSpec", "tool_spec")
_DECLARATIONS = ("functionDeclarations", "function_declarations")


def merged(parameters: Mapping[str, Any], members: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the parameters of a model with the members of one request, which take precedence.

    Objects are merged recursively. Lists of tools are concatenated; a tool in ``members`` replaces a tool with the same name. The
    value None removes a parameter. If a name is spelled differently, the spelling in ``parameters`` is used.
    """
    both = _merge(parameters, {name: value for name, value in members.items() if value is not None})
    removed = {_plain(name) for name, value in members.items() if value is None}
    return {name: value for name, value in both.items() if _plain(name) not in removed} if removed else both


def without_empty(**members: Any) -> dict[str, Any]:
    """Return the members of a request without None and empty texts, tuples and dicts."""
    return {name: value for name, value in members.items() if value is not None and value not in ((), "", {})}


def function_tool(tool: ToolDefinition, *, strict: bool = True) -> dict[str, Any]:
    """Return a tool definition in the format of Chat Completions, which several providers use.

    Args:
        tool: The tool.
        strict: True if the provider supports the member ``strict``.
    """
    function = without_empty(description=tool.description, strict=tool.strict if strict else None)
    return {"type": "function", "function": {"name": tool.name, "parameters": tool.parameters, **function}}


def has_tools(parameters: Mapping[str, Any]) -> bool:
    """Return True if the members of a request contain a tool definition."""
    plain = {_plain(name): value for name, value in parameters.items()}
    config = plain.get("toolconfig")
    in_config = isinstance(config, Mapping) and bool(cast("Mapping[str, Any]", config).get("tools"))
    return in_config or bool(plain.get("tools") or plain.get("functions"))


def tool_name(tool: object) -> str | None:
    """Return the name in a tool definition of any provider; None if there is none."""
    if not isinstance(tool, Mapping):
        return None
    fields = cast("Mapping[str, Any]", tool)
    name = fields.get("name")
    if isinstance(name, str):
        return name
    return next((tool_name(fields[member]) for member in _NESTED if member in fields), None)


def _merge(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(old)
    original_names = {_plain(name): name for name in old}
    for name, value in new.items():
        plain = _plain(name)
        for excluded in _EXCLUSIVE.get(plain, ()):
            both.pop(original_names.get(excluded, ""), None)
        original_name = original_names.get(plain, name)
        both[original_name] = _merge_value(plain, both.get(original_name), value)
    return both


def _merge_value(plain: str, old: object, new: object) -> Any:
    if isinstance(old, list | tuple) and isinstance(new, list | tuple) and plain in _TOOLS:
        return _merge_tools(cast("Sequence[Any]", old), cast("Sequence[Any]", new))
    if isinstance(old, Mapping) and isinstance(new, Mapping) and plain not in _ATOMIC:
        return _merge(cast("Mapping[str, Any]", old), cast("Mapping[str, Any]", new))
    return cast("Any", new)


def _merge_tools(old: Sequence[Any], new: Sequence[Any]) -> list[Any]:
    """Merge two lists of tools. Entries with function declarations become one entry, because Google requires this."""
    names = {name for tool in new if (name := tool_name(tool)) is not None}
    both = [tool for tool in old if tool_name(tool) not in names]
    for tool in new:
        position = next(
            (position for position, other in enumerate(both) if _declares(tool) and _declares(other)), None
        )
        if position is None:
            both.append(tool)
        else:
            both[position] = _merge(both[position], tool)
    return both


def _declares(tool: object) -> bool:
    return isinstance(tool, Mapping) and any(member in tool for member in _DECLARATIONS)


def _plain(name: str) -> str:
    return name.replace("_", "").lower()

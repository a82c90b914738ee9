"""The members of a request: those that a model is always asked with, and those that one request adds.

Both are in the provider's own form, so that little has to be known of it: which members are lists of tools, which are
one value though they are objects, and which exclude each other.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from tailrace.wrappers.options import ToolDefinition

# Names are compared without case and underscores: Google takes ``generationConfig`` and ``generation_config``, and
# refuses both at once.
_TOOLS = frozenset({"functiondeclarations", "tools"})

# A choice, or a schema: mixed with another of its kind it would be neither.
_WHOLE = frozenset(
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

# Of these a provider takes one: what a request asks for puts the others out of it.
_RIVALS: Mapping[str, frozenset[str]] = {
    name: rivals - {name}
    for rivals in (
        frozenset({"maxcompletiontokens", "maxtokens"}),
        frozenset({"responsejsonschema", "responseschema"}),
        frozenset({"thinkingbudget", "thinkinglevel"}),
        frozenset({"functioncall", "toolchoice"}),
    )
    for name in rivals
}

# Where a tool's name stands, in the tool or one level below.
_NESTED = ("function", "custom", "toolSpec", "tool_spec")
_DECLARATIONS = ("functionDeclarations", "function_declarations")


def merged(parameters: Mapping[str, Any], members: Mapping[str, Any]) -> dict[str, Any]:
    """What a model is always asked with, and what this request asks; neither is changed.

    Objects are merged member by member, and lists of tools added up, where a tool of the request takes the place of
    one that bears its name. Of everything else the request's counts; None takes a member out. Members are spelled as
    ``parameters`` spell them.

    Args:
        parameters: Of every request, in the provider's form.
        members: Of this one.
    """
    both = _joined(parameters, {name: value for name, value in members.items() if value is not None})
    unwanted = {_plain(name) for name, value in members.items() if value is None}
    return {name: value for name, value in both.items() if _plain(name) not in unwanted} if unwanted else both


def asked(**members: Any) -> dict[str, Any]:
    """Members of a request, without those that are None or empty: what is left to the provider."""
    return {name: value for name, value in members.items() if value is not None and value not in ((), "", {})}


def function_tool(tool: ToolDefinition, *, strict: bool = True) -> dict[str, Any]:
    """A tool in the form that OpenAI gave it for Chat Completions, and others took over.

    Args:
        tool: The tool.
        strict: The provider knows that member.
    """
    function = asked(description=tool.description, strict=tool.strict if strict else None)
    return {"type": "function", "function": {"name": tool.name, "parameters": tool.parameters, **function}}


def offered(parameters: Mapping[str, Any]) -> bool:
    """Whether the members of a request offer the model any tool."""
    plain = {_plain(name): value for name, value in parameters.items()}
    config = plain.get("toolconfig")
    inside = isinstance(config, Mapping) and bool(cast("Mapping[str, Any]", config).get("tools"))
    return inside or bool(plain.get("tools") or plain.get("functions"))


def tool_name(tool: object) -> str | None:
    """The name of a tool in whichever provider's form; None for what has none."""
    if not isinstance(tool, Mapping):
        return None
    fields = cast("Mapping[str, Any]", tool)
    name = fields.get("name")
    if isinstance(name, str):
        return name
    return next((tool_name(fields[member]) for member in _NESTED if member in fields), None)


def _joined(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(old)
    spellings = {_plain(name): name for name in old}
    for name, value in new.items():
        plain = _plain(name)
        for rival in _RIVALS.get(plain, ()):
            both.pop(spellings.get(rival, ""), None)
        given = spellings.get(plain, name)
        both[given] = _one(plain, both.get(given), value)
    return both


def _one(plain: str, old: object, new: object) -> Any:
    if isinstance(old, list | tuple) and isinstance(new, list | tuple) and plain in _TOOLS:
        return _added(cast("Sequence[Any]", old), cast("Sequence[Any]", new))
    if isinstance(old, Mapping) and isinstance(new, Mapping) and plain not in _WHOLE:
        return _joined(cast("Mapping[str, Any]", old), cast("Mapping[str, Any]", new))
    return cast("Any", new)


def _added(old: Sequence[Any], new: Sequence[Any]) -> list[Any]:
    """Two lists of tools; what Google wants in one entry, its declarations of functions, stands in one."""
    names = {name for tool in new if (name := tool_name(tool)) is not None}
    both = [tool for tool in old if tool_name(tool) not in names]
    for tool in new:
        at = next((at for at, other in enumerate(both) if _declares(tool) and _declares(other)), None)
        if at is None:
            both.append(tool)
        else:
            both[at] = _joined(both[at], tool)
    return both


def _declares(tool: object) -> bool:
    return isinstance(tool, Mapping) and any(member in tool for member in _DECLARATIONS)


def _plain(name: str) -> str:
    return name.replace("_", "").lower()

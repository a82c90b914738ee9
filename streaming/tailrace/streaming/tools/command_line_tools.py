"""Parsers of the arguments of ``tailrace serve --tools`` and ``--approve``.

An argument of ``--tools`` has one of these forms:

- ``MODULE:NAME``: the value of ``NAME`` in a module: a function, a `Tool`, a `Toolset`, or a list of these.
- ``mcp:https://…`` or ``mcp:http://…``: the tools of an MCP server at a URL.
- ``mcp:[VARIABLE=VALUE …] COMMAND …``: the tools of an MCP server that is a program, with its environment variables and
  arguments. The value ``$OTHER`` is replaced with the environment variable ``OTHER`` of this process.
"""

import os
import re
import shlex
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import cast

from tailrace.streaming.tools.approvals import (
    DEFAULT_LIFETIME,
    DESTRUCTIVE_TOOLS,
    ApprovalPolicy,
    NeedsApproval,
)
from tailrace.streaming.tools.tools import Tool, Toolset, as_tool
from tailrace.wrappers import ConfigurationError

_MCP = "mcp:"
_MODULE = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*):([^\W\d]\w*(?:\.[^\W\d]\w*)*)")
_VARIABLE = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


def parse_tools(spec: str) -> Tool | Toolset | list[Tool | Toolset]:
    """Parse an argument of ``--tools``. Modules are imported, also from the current folder.

    Raises:
        ConfigurationError: The argument is invalid, the module cannot be imported, or the value is not a tool.
            The message has one line.
    """
    if spec.startswith(_MCP):
        return _mcp_tools(spec, spec.removeprefix(_MCP).strip())
    match = _MODULE.fullmatch(spec.strip())
    if match is None:
        raise ConfigurationError(
            f"tools {spec!r}: not of the form MODULE:NAME, mcp:https://… or mcp:COMMAND …"
        )
    value = _imported(spec, match[1], match[2])
    if isinstance(value, list | tuple):
        return [_tool(spec, each) for each in cast("list[object]", value)]
    return _tool(spec, value)


def parse_approvals(specs: Sequence[str], *, lifetime: float = DEFAULT_LIFETIME) -> ApprovalPolicy:
    """Parse the arguments of ``tailrace serve --approve``.

    Args:
        specs: The arguments. Each is the name of a tool, ``*`` for all tools, ``mcp:destructive``, or ``MODULE:NAME`` of a
            function that returns True for a call that requires an approval.
        lifetime: See `ApprovalPolicy`.

    Raises:
        ConfigurationError: A ``MODULE:NAME`` cannot be imported, or is not a function.
    """
    names: list[str] = []
    functions: list[NeedsApproval] = []
    for spec in map(str.strip, specs):
        match = _MODULE.fullmatch(spec) if spec != DESTRUCTIVE_TOOLS else None
        if match is None:
            names.append(spec)
            continue
        value = _imported(spec, match[1], match[2])
        if not callable(value):
            raise ConfigurationError(
                f"approvals {spec!r}: a value of type {type(value).__name__} is not a function"
            )
        functions.append(cast("NeedsApproval", value))
    return ApprovalPolicy(names, functions, lifetime=lifetime)


def _mcp_tools(spec: str, server: str) -> Toolset:
    from tailrace.streaming.tools.mcp import McpToolset

    if server.startswith(("http://", "https://")):
        return McpToolset.http(server)
    try:
        words = shlex.split(server)
    except ValueError as error:
        raise ConfigurationError(f"tools {spec!r}: {error}") from None
    environment: dict[str, str] = {}
    while words and (assigned := _VARIABLE.fullmatch(words[0])):
        words.pop(0)
        name, value = assigned[1], assigned[2]
        if value.startswith("$"):
            if value[1:] not in os.environ:
                raise ConfigurationError(f"tools {spec!r}: there is no variable {value[1:]}")
            value = os.environ[value[1:]]
        environment[name] = value
    if not words:
        raise ConfigurationError(f"tools {spec!r}: no command and no address")
    return McpToolset.stdio(*words, env=environment)


def _imported(spec: str, module: str, name: str) -> object:
    # An installed program does not search the current folder for modules. Add the folder at the end of the path, so that its
    # files do not shadow installed modules.
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    try:
        value: object = import_module(module)
    except (Exception, SystemExit) as error:
        raise ConfigurationError(f"tools {spec!r}: {_import_error(module, error)}") from error
    for step in name.split("."):
        try:
            value = getattr(value, step)
        except AttributeError:
            raise ConfigurationError(f"tools {spec!r}: {module} has no {name}") from None
    return value


def _import_error(module: str, error: BaseException) -> str:
    reason = next(iter(str(error).splitlines()), "")
    if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
        return f"there is no module {error.name!r}"
    return f"{module} cannot be imported: {type(error).__name__}{': ' if reason else ''}{reason}"


def _tool(spec: str, value: object) -> Tool | Toolset:
    if isinstance(value, Toolset):
        return value
    if isinstance(value, type):
        raise ConfigurationError(f"tools {spec!r}: {value.__name__} is a class; give an object or a function")
    if not isinstance(value, Tool) and not callable(value):
        raise ConfigurationError(
            f"tools {spec!r}: a value of type {type(value).__name__} is not a tool, a function or a toolset"
        )
    try:
        return as_tool(value)
    except ConfigurationError as error:
        raise ConfigurationError(f"tools {spec!r}: {error}") from error

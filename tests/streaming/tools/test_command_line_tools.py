"""Tools as values of a command-line option."""

import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.streaming import FunctionTool, Tool
from tailrace.streaming.tools.command_line_tools import parse_tools
from tailrace.streaming.tools.mcp import HttpServer, McpToolset, StdioServer
from tailrace.wrappers import ConfigurationError

SOURCE = '''
from tailrace.streaming import tool
from tailrace.streaming.tools.mcp import McpToolset

def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b

@tool(name="twice")
def double(a: int) -> int:
    return 2 * a

class Shop:
    def price(self, item: str) -> float:
        return 1.0

shop = Shop()
time = McpToolset.stdio("uvx", "mcp-server-time")
everything = [add, double, time]
pair = (add, double)
text = "add"
mixed = [add, 3]

def positional(a: int, /) -> int:
    return a
'''


@pytest.fixture
def _modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    (tmp_path / "own_tools.py").write_text(SOURCE)
    (tmp_path / "broken_tools.py").write_text("import no_such_thing\n")
    (tmp_path / "leaving_tools.py").write_text("import sys\nsys.exit('no key\\nat all')\n")
    (tmp_path / "silent_tools.py").write_text("raise ValueError\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("own_tools", "broken_tools", "leaving_tools", "silent_tools"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def one(spec: str) -> Tool:
    found = parse_tools(spec)
    assert isinstance(found, Tool)
    return found


@pytest.mark.usefixtures("_modules")
def test_a_module_names_functions_tools_sets_and_lists_of_them() -> None:
    add = one("own_tools:add")
    assert isinstance(add, FunctionTool)
    assert (add.definition.name, add.definition.description) == ("add", "Add two numbers.")
    assert one("own_tools:double").definition.name == "twice"
    assert one("own_tools:shop.price").definition.name == "price"
    assert isinstance(parse_tools("own_tools:time"), McpToolset)
    for spec, kinds in (
        ("own_tools:everything", [FunctionTool, FunctionTool, McpToolset]),
        ("own_tools:pair", [FunctionTool, FunctionTool]),
    ):
        found = parse_tools(spec)
        assert isinstance(found, list)
        assert [type(each) for each in found] == kinds


@pytest.mark.usefixtures("_modules")
@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("own_tools", "not of the form MODULE:NAME"),
        ("own_tools.py:add", "there is no module 'own_tools.py'"),
        ("own-tools:add", "not of the form MODULE:NAME"),
        ("own_tools:", "not of the form MODULE:NAME"),
        ("", "not of the form MODULE:NAME"),
        ("no_such_module:add", "there is no module 'no_such_module'"),
        ("json.nope:add", "there is no module 'json.nope'"),
        ("own_tools:nope", "own_tools has no nope"),
        ("own_tools:shop.nope", "own_tools has no shop.nope"),
        (
            "broken_tools:add",
            "broken_tools cannot be imported: ModuleNotFoundError: No module named 'no_such_thing'",
        ),
        ("leaving_tools:add", "leaving_tools cannot be imported: SystemExit: no key"),
        ("silent_tools:add", "silent_tools cannot be imported: ValueError"),
        ("own_tools:text", "a value of type str is not a tool, a function or a toolset"),
        ("own_tools:mixed", "a value of type int is not a tool, a function or a toolset"),
        ("own_tools:Shop", "Shop is a class; give an object or a function"),
        ("own_tools:positional", "tool positional: the parameter a: int cannot be passed by name"),
        ("mcp:", "no command and no address"),
        ("mcp:A=b", "no command and no address"),
        ("mcp:uvx 'a", "No closing quotation"),
        ("mcp:A=$NO_SUCH_VARIABLE uvx a", "there is no variable NO_SUCH_VARIABLE"),
    ],
)
def test_an_invalid_spec_is_reported_in_one_line(spec: str, why: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        parse_tools(spec)
    message = str(raised.value)
    assert message.startswith(f"tools {spec!r}: ")
    assert why in message
    assert "\n" not in message


def test_an_mcp_server_is_an_address_or_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def server(spec: str) -> object:
        found = parse_tools(spec)
        assert isinstance(found, McpToolset)
        return found.server

    monkeypatch.setenv("MY_TOKEN", "s3cret")
    assert server("mcp:https://example.com/mcp") == HttpServer("https://example.com/mcp")
    assert server("mcp:http://127.0.0.1:1/mcp?a=b") == HttpServer("http://127.0.0.1:1/mcp?a=b")
    assert server("mcp:uvx mcp-server-time") == StdioServer("uvx", ("mcp-server-time",))
    assert server("mcp: npx -y 'a server' --x=y") == StdioServer("npx", ("-y", "a server", "--x=y"))
    assert server("mcp:TOKEN=$MY_TOKEN LEVEL=3 uvx a B=c") == StdioServer(
        "uvx", ("a", "B=c"), {"TOKEN": "s3cret", "LEVEL": "3"}
    )


@pytest.mark.usefixtures("_modules")
def test_an_installed_program_finds_modules_in_the_current_folder() -> None:
    # -P: without the folder in the path, as with a console script.
    program = "from tailrace.streaming.tools.command_line_tools import parse_tools; print(parse_tools('own_tools:add').definition.name)"
    ended = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "add\n"

"""The call counts per token: a small run of the real server, and the page generated from it."""

import ast
import asyncio
from pathlib import Path
from types import CodeType

import anyio
import pytest
import uvloop

from benchmarks.calls import bounds, path
from benchmarks.calls.counter import CallCounter
from benchmarks.calls.measure import Call, Function, Measurement, TurnCalls, Window, measure

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def found() -> Measurement:
    return measure(streams=4, tokens=100)


def test_every_token_is_read_encoded_and_sent_once(found: Measurement) -> None:
    for window in (found.grouped, found.alone):
        calls = {(function.file, function.name): function.calls for function in window.functions}
        assert calls[
            "tailrace/wrappers/http/http1_connection.py", "Connection.data_received"
        ] == pytest.approx(1, abs=0.05)
        assert window.python_calls > 10
        assert window.c_calls > 10


def test_tokens_that_come_together_share_calls(found: Measurement) -> None:
    assert found.grouped.group == 4
    assert found.grouped.python_calls < found.alone.python_calls
    assert found.grouped.callbacks < found.alone.callbacks


def test_the_path_of_a_token_begins_at_the_providers_socket_and_is_all_that_is_called(
    found: Measurement,
) -> None:
    first, *others = [call for callback in found.alone.path for call in callback]
    assert first == Call(0, "tailrace/wrappers/http/http1_connection.py", "Connection.data_received")
    assert len(others) + 1 == pytest.approx(found.alone.python_calls + found.alone.c_calls, rel=0.1)
    assert any(call.name.startswith(("Connection.", "Cursor.")) for call in others)  # of sqlite3
    assert any(file.startswith("tailrace/wrappers/") for file in found.alone.files)


def test_a_turn_takes_more_calls_than_a_token(found: Measurement) -> None:
    assert found.turn.python_calls > 10 * found.alone.python_calls
    assert found.turn.c_calls > 10 * found.alone.c_calls


def test_another_count_gives_the_same_path(found: Measurement) -> None:
    assert measure(streams=4, tokens=100).alone.path == found.alone.path


def test_a_call_of_the_event_loop_is_a_callback_with_depths() -> None:
    def data_received() -> None:
        inner()

    def inner() -> int:
        return len("")

    async def count() -> dict[str, object]:
        loop = asyncio.get_running_loop()
        counter = CallCounter()
        loop.call_soon(counter.start)
        for _ in range(3):
            loop.call_soon(data_received)
        await anyio.sleep(0.01)
        return counter.stop()

    window = uvloop.run(count())
    name = "test_a_call_of_the_event_loop_is_a_callback_with_depths.<locals>"
    file = str(Path(__file__))
    assert window["path"] == [
        [[0, file, f"{name}.data_received"], [1, file, f"{name}.inner"], [2, "", "len"]]
    ]
    assert window["path_times"] == 2  # a path ends where the next one begins


def _window(python_calls: float = 1, c_calls: float = 1, files: int = 1, path_calls: int = 1) -> Window:
    functions = (Function("tailrace/a.py", "f", python_calls), Function("", "len", c_calls))
    calls = tuple(Call(0, f"tailrace/{number}.py", "f") for number in range(files))
    calls += calls[:1] * (path_calls - len(calls))
    return Window(50, 10, 100, 1, functions, (calls,))


@pytest.mark.parametrize(
    ("grouped", "alone", "turn", "broken"),
    [
        (_window(), _window(), TurnCalls(1, 1), []),
        (_window(python_calls=1e3), _window(), TurnCalls(1, 1), ["Python calls a token, in groups"]),
        (_window(c_calls=1e3), _window(), TurnCalls(1, 1), ["C calls a token, in groups"]),
        (_window(), _window(path_calls=200), TurnCalls(1, 1), ["Python calls on the path of a token"]),
        (_window(), _window(files=40), TurnCalls(1, 1), ["files on the path of a token"]),
        (_window(), _window(), TurnCalls(1e4, 1), ["Python calls of a turn until its first text"]),
        (_window(), _window(), TurnCalls(1, 1e4), ["C calls of a turn until its first text"]),
    ],
)
def test_more_calls_or_files_break_a_bound(
    grouped: Window, alone: Window, turn: TurnCalls, broken: list[str]
) -> None:
    verdicts = bounds.judge(Measurement(_window(1e3, 1e3, 60, 200), grouped, alone, turn))
    assert [verdict.what for verdict in verdicts if not verdict.holds] == broken


def test_c_functions_are_listed_with_their_caller() -> None:
    callback = (
        Call(0, "tailrace/a.py", "outer"),
        Call(1, "", "len"),
        Call(1, "tailrace/b.py", "inner"),
        Call(2, "", "iter"),
        Call(1, "", "min"),
    )
    lines = list(path.listing(Window(1, 1, 1, 1, (), (callback,))))
    assert [" ".join(line.split()) for line in lines] == [
        "callback 1 of the event loop",
        "1 outer tailrace/a.py",
        "[len, min]",
        "2 inner tailrace/b.py",
        "[iter]",
    ]


def test_the_page_is_written_between_its_markers() -> None:
    page = path.PAGE.read_text(encoding="utf-8")
    once = path.insert(page, "the path")
    assert "the path" in once
    assert path.insert(once, "the path") == once
    assert once.startswith(page.partition("<!-- calls:")[0])
    with pytest.raises(ValueError, match="markers"):
        path.insert("nothing", "the path")


def test_the_functions_on_the_page_exist() -> None:
    section = (
        path.PAGE.read_text(encoding="utf-8").partition("<!-- calls:")[2].partition("<!-- end of calls")[0]
    )
    listed = [line.split()[-2:] for line in section.splitlines() if "tailrace/" in line and "`" not in line]
    named = [(file, name) for name, file in listed if file.startswith("tailrace/")]
    assert len(named) > 10
    missing = [(file, name) for file, name in named if name not in _functions(file)]
    assert not missing, "run: python -m benchmarks.calls --write"


def _functions(file: str) -> set[str]:
    """Return the qualified names of all functions in a source file of ours."""
    sources = [root / file for root in (ROOT / "wrappers", ROOT / "streaming", ROOT / "server")]
    source = next((source for source in sources if source.exists()), None)
    if source is None:
        return set()
    found: set[str] = set()
    pending = [compile(ast.parse(source.read_text(encoding="utf-8")), file, "exec")]
    for code in pending:
        found.add(code.co_qualname)
        pending += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return found

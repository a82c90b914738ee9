"""The check of private access on small modules."""

import textwrap
from pathlib import Path

import pytest

from checks.private_access import Finding, findings, problems
from checks.sources import Module, is_private


def found(*sources: str) -> list[str]:
    """The findings in modules ``tailrace.m0``, ``tailrace.m1``, …, as "line rule what"."""
    modules = [
        Module.parse(f"tailrace.m{number}", Path(f"m{number}.py"), textwrap.dedent(source).lstrip("\n"))
        for number, source in enumerate(sources)
    ]
    return [f"{each.line} {each.rule} {each.what}" for each in findings(modules)]


@pytest.mark.parametrize(
    ("name", "private"),
    [
        ("_x", True),
        ("_x1", True),
        ("x", False),
        ("__x__", False),
        ("__x", False),
        ("_missing_", False),
        ("_", False),
    ],
)
def test_private_names_begin_with_one_underscore(name: str, private: bool) -> None:
    assert is_private(name) is private


@pytest.mark.parametrize(
    ("source", "finding"),
    [
        ("import anyio._core", "1 import anyio._core"),
        ("from anyio._core import _tasks", "1 import anyio._core._tasks"),
        ("from anyio import _core as core", "1 import anyio._core"),
        ("def f():\n    from uvicorn import _types", "2 import uvicorn._types"),
        ("import anyio\nanyio._core.x()", "2 attribute anyio._core of anyio"),
        ("import sys\nsys._getframe()", "2 attribute sys._getframe of sys"),
        (
            "import aiohttp\ndef f(r: aiohttp.StreamReader): return r._buffer",
            "2 attribute r._buffer of aiohttp.StreamReader",
        ),
        (
            "import aiohttp\ndef f(r: 'aiohttp.StreamReader | None'): del r._buffer",
            "2 attribute r._buffer of aiohttp.StreamReader",
        ),
        (
            "import aiohttp\ns = aiohttp.ClientSession()\ns._closed = 1",
            "3 attribute s._closed of aiohttp.ClientSession",
        ),
        ("import httpx\nwith httpx.Client() as c: c._send()", "2 attribute c._send of httpx.Client"),
        ("import httpx\nhttpx.get('')._content", "2 attribute httpx.get('')._content of httpx.get()"),
        (
            "import aiohttp\ndef f(r: aiohttp.ClientResponse): r.content._size",
            "2 attribute r.content._size of aiohttp.ClientResponse.content",
        ),
        (
            "from typing import cast\nimport httpx\ndef f(x):\n    y = cast('httpx.Client', x)\n    y._send()",
            "5 attribute y._send of httpx.Client",
        ),
        (
            "import httpx\ndef f(x):\n    if isinstance(x, httpx.Client): x._send()",
            "3 attribute x._send of httpx.Client",
        ),
        ("def f(x): return x._secret", "1 attribute x._secret"),
        ("def f(x): return getattr(x, '_secret', None)", "1 attribute x._secret"),
        ("def f(x): setattr(x, '_secret', 1)", "1 attribute x._secret"),
        ("import operator\nf = operator.attrgetter('_secret')", "2 attribute operator.attrgetter('_secret')"),
        (
            "import httpx\nclass A:\n    def __init__(self): self.client = httpx.Client()\n    def f(self): self.client._send()",
            "4 attribute self.client._send of httpx.Client",
        ),
    ],
)
def test_a_private_name_of_a_library_is_found(source: str, finding: str) -> None:
    assert found(source) == [finding]


@pytest.mark.parametrize(
    "source",
    [
        "from __future__ import annotations",
        "import anyio\nanyio.__version__",
        "from urllib.parse import urlsplit\nurlsplit('')._replace(scheme='')",
        "import os\nos._exit(0)",
        "class A:\n    def __init__(self): self._x = 1\n    def f(self, other: 'A'): return self._x + other._x",
        "class A:\n    _x: int\nclass B(A):\n    def f(self): return self._x",
        "class A:\n    def f(self): return self._x()\nclass B(A):\n    def _x(self): pass",
        "class A:\n    __slots__ = ('_x',)\ndef f(a): return a._x",
        "_x = 1\ndef f(module): return module._x",
        "class A:\n    @classmethod\n    def _make(cls): return cls._make()",
        "def f():\n    class A:\n        def _x(self): return self._x()",
    ],
)
def test_names_of_our_own_and_documented_ones_are_no_findings(source: str) -> None:
    assert found(source) == []


def test_a_name_that_only_another_module_defines_is_found_where_the_object_is_not_known() -> None:
    ours = "class A:\n    def __init__(self): self._x = 1"
    assert found(ours, "def f(connection): return connection._x") == ["1 attribute connection._x"]
    assert found(ours, "from tailrace.m0 import A\ndef f(a: A): return a._x") == []
    assert found(ours, "from tailrace.m0 import A\nclass B(A):\n    def f(self): return self._x") == []


def test_a_subclass_of_a_librarys_class_keeps_out_of_its_private_attributes() -> None:
    source = """
        import aiohttp

        class Base(aiohttp.StreamReader):
            pass

        class Reader(Base):
            _timer = 1

            def read_more(self):
                self._own = self._buffer
                super()._read_nowait(1)

            def _read_nowait_chunk(self, n):
                self._missing()
    """
    assert found(source) == [
        "7 inherited Reader overrides aiohttp.StreamReader._timer",
        "10 inherited self._buffer of aiohttp.StreamReader",
        "11 inherited super()._read_nowait of aiohttp.StreamReader",
        "13 inherited Reader overrides aiohttp.StreamReader._read_nowait_chunk",
        "14 attribute self._missing, which tailrace.m0.Reader does not define",
    ]


@pytest.mark.parametrize(
    ("source", "finding"),
    [
        ("def f(x, y): x.__class__ = y", "1 class x.__class__ = …"),
        ("import uvicorn\nuvicorn.run = print", "2 replaced uvicorn.run = … of uvicorn"),
        ("from uvicorn import Server\nServer.serve = print", "2 replaced Server.serve = … of uvicorn.Server"),
        (
            "from starlette.routing import Route\ndef f(r: Route): r.app = print",
            "2 replaced r.app = … of starlette.routing.Route",
        ),
        (
            "import aiohttp\ndef f(r: aiohttp.ClientResponse): r.connection.protocol.read_timeout = None",
            "2 replaced r.connection.protocol.read_timeout = … of aiohttp.ClientResponse.connection.protocol",
        ),
        ("def f(send): return send.__self__", "1 reflection send.__self__"),
        ("def f(send): return getattr(send, '__self__')", "1 reflection getattr(send, '__self__')"),
        ("def f(x): return x.__module__ == 'uvicorn'", "1 reflection x.__module__"),
        ("def f(scope): return scope['fastapi_astack']", "1 scope scope['fastapi_astack']"),
        ("def f(request): return request.scope.get('fastapi.x')", "1 scope request.scope.get('fastapi.x')"),
    ],
)
def test_reaching_into_a_librarys_objects_is_found(source: str, finding: str) -> None:
    assert found(source) == [finding]


@pytest.mark.parametrize(
    "source",
    [
        "import anyio\ndef f(scope: anyio.CancelScope): scope.deadline = 1",
        "import logging\ndef f(record: logging.LogRecord): record.args = ()",
        "import httpx\ndef f(error: httpx.TimeoutException): error.diagnosis = ''",
        "from starlette.requests import Request\ndef f(r: Request): r.state.user = 1",
        "class A:\n    pass\nA.f = print",
        "class A:\n    pass\ndef f(x): return x.__module__ == A.__module__",
        "def f(scope): return scope['path'], scope['tailrace.own'], scope.get('app')",
        "def f(x): return x.__class__ is dict",
    ],
)
def test_what_libraries_offer_to_set_and_read_is_no_finding(source: str) -> None:
    assert found(source) == []


def test_a_line_is_exempt_by_a_comment_that_names_a_decision() -> None:
    source = "def f(x): return x._secret  # private: docs/decisions/0042\n"
    [finding] = findings([Module.parse("tailrace.m", Path("m.py"), source)])
    assert finding.exempt == "0042"
    assert list(problems([finding], {}, {"0042"})) == []
    assert list(problems([finding], {}, ())) == ["m.py:1: there is no decision 0042 in docs/decisions"]
    assert list(problems([finding] * 3, {}, {"0042"})) == ["3 exempt lines, where 2 are allowed"]


def test_more_findings_than_the_baseline_are_a_problem() -> None:
    two = [Finding("m.py", 1, "attribute", "x._a"), Finding("m.py", 2, "attribute", "x._b")]
    assert list(problems(two, {"m.py": 2}, ())) == []
    assert list(problems(two, {"m.py": 1}, ())) == [
        "m.py: 2 uses of private parts of libraries, where the baseline is 1"
    ]
    assert len(list(problems(two, {}, ()))) == 1

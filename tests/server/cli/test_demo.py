"""``tailrace demo`` with the recorded answer; ``tests/e2e/test_demo_process.py`` runs the real model."""

import re
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from support.processes import tailrace
from tailrace.server.cli.commands import create_cli
from tailrace.server.cli.demo import HOST, PORT
from tailrace.wrappers import ConfigurationError, StoreError


def run(*arguments: str) -> Result:
    return CliRunner().invoke(create_cli(), ["demo", "--once", *arguments])


@contextmanager
def listening(port: int = 0) -> Generator[int]:
    with socket.create_server((HOST, port)) as listener:
        yield listener.getsockname()[1]


def test_if_the_model_cannot_run_the_demo_prints_the_reason_and_replays_a_recording(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    # Environment variables must not affect the demo.
    monkeypatch.setenv("TAILRACE_MODEL", "openai:somebody-elses")
    monkeypatch.setenv("TAILRACE_PUBLIC_URL", "http://127.0.0.1:1/")
    monkeypatch.setitem(sys.modules, "xllamacpp", None)  # the state of Python without the wheel
    store = tmp_path / "tasks.db"
    result = run("--port", "0", "--store", f"sqlite:///{store}", "--prompt", "Why?")
    assert result.exit_code == 0, result.output
    assert "the wheel xllamacpp (the engine) is not installed" in result.output
    assert "a recorded response of smollm2-135m-instruct" in result.output
    assert re.search(r"prompt +Why\?\n", result.output)
    assert re.search(r" 1  task +[0-9a-f-]{36}  submitted\n +2  status +working\n", result.output)
    assert re.search(
        r" 3-\d+  artifact  complete: \d+ events, \d+ characters\n +\d+  status +completed", result.output
    )
    assert re.search(r"usage +\d+ tokens in, \d+ out, [\d.]+ tokens/s", result.output)
    assert "same id: yes, same state: yes, same text: yes" in result.output
    assert "serving at" not in result.output
    with sqlite3.connect(store) as database:
        assert database.execute("SELECT name FROM sqlite_master").fetchall()
    database.close()


def test_a_response_that_is_cut_continues(caplog: pytest.LogCaptureFixture):
    """The replay server cannot continue a text, so the response begins again. No log line divides its text."""
    result = run("--recorded", "--cut", "--port", "0")
    assert result.exit_code == 0, result.output
    assert re.search(
        r"\n +3-(\d+)  artifact  so far: \d+ events, \d+ characters\n"
        r" +\d+  continued attempt 2 by replace, after the error stream_truncated\n",
        result.output,
    )
    assert "same id: yes, same state: yes, same text: yes" in result.output
    assert [each for each in caplog.records if each.name.startswith("tailrace")] == []


@pytest.mark.parametrize("lines", [1, 9])
def test_a_reader_that_leaves_ends_the_demo_without_a_traceback(lines: int):
    command = tailrace("demo", "--once", "--recorded", "--port", "0")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for _ in range(lines):
            assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode in (0, 1)  # 0 if everything was written before


def test_a_model_that_does_not_start_is_replaced_by_the_recording_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    result = run("--port", "0")
    assert result.exit_code == 0, result.output
    assert re.search(r"no model +\S", result.output)
    assert "a recorded response" in result.output


def test_a_port_in_use_is_avoided_unless_it_was_requested():
    with suppress(OSError), listening(PORT):
        result = run("--recorded")
        assert result.exit_code == 0, result.output
        assert "--recorded was given" in result.output
        [port] = re.findall(rf"server +http://{HOST}:(\d+) ", result.output)
        assert int(port) != PORT
    with listening() as taken:
        result = run("--recorded", "--port", str(taken))
        assert isinstance(result.exception, ConfigurationError)
        assert f"port {taken} cannot be used" in str(result.exception)


def test_what_cannot_be_used_is_one_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "notes.txt").write_text("no database " * 100)
    result = run("--recorded", "--port", "0", "--store", f"sqlite:///{tmp_path}/notes.txt")
    assert isinstance(result.exception, StoreError)
    monkeypatch.setenv("TAILRACE_COALESCE", "often")
    result = run("--recorded", "--port", "0")
    assert isinstance(result.exception, ConfigurationError)
    assert "TAILRACE_COALESCE" in str(result.exception)

"""``tailrace demo`` and ``tailrace ask`` as real processes, with the real model where it can run."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from anyio.abc import Process
from anyio.streams.text import TextReceiveStream

from support.agents import Scripted
from support.engines import engine_with
from tailrace.server import Store
from tailrace.server.cli.local_model import unavailable_reason
from tailrace.server.store.store import TaskFilter
from tailrace.streaming import TaskState

PROGRAM = str(Path(sys.executable).with_name("tailrace"))
MODEL = "running on this machine" if unavailable_reason() is None else "a recorded response"
PROMPT = "Say hello in one short sentence."


async def start(*arguments: str) -> Process:
    return await anyio.open_process([PROGRAM, *arguments], stderr=subprocess.STDOUT)


async def read_until(process: Process, last: str) -> str:
    """Return the output of the process up to and including a text."""
    assert process.stdout is not None
    printed = ""
    async for piece in TextReceiveStream(process.stdout):
        printed += piece
        if last in printed:
            return printed
    pytest.fail(f"the process ended before {last!r}; its output: {printed}")


async def read_all(process: Process) -> str:
    assert process.stdout is not None
    return "".join([piece async for piece in TextReceiveStream(process.stdout)])


def children(pid: int) -> list[int]:
    if Path("/proc/self/stat").exists():  # a minimal machine may have no `ps`
        pairs: list[tuple[int, int]] = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                # "PID (NAME) STATE PARENT ..."; the name may contain any character.
                parent = stat.read_text(errors="replace").rpartition(")")[2].split()[1]
                pairs.append((int(stat.parent.name), int(parent)))
    else:
        listed = subprocess.run(["ps", "-axo", "pid=,ppid="], check=True, capture_output=True, text=True)
        words = [line.split() for line in listed.stdout.splitlines()]
        pairs = [(int(child), int(parent)) for child, parent in words]
    return [child for child, parent in pairs if parent == pid]


def running(pids: Sequence[int]) -> list[int]:
    alive: list[int] = []
    for pid in pids:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            continue
        alive.append(pid)
    return alive


async def test_the_demo_shows_a_real_models_answer_as_events_and_ends_by_itself(tmp_path: Path):
    store = tmp_path / "tasks.db"
    done = await anyio.run_process(
        [PROGRAM, "demo", "--once", "--port", "0", "--prompt", PROMPT, "--store", f"sqlite:///{store}"],
        check=False,
    )
    printed = done.stdout.decode()
    assert done.returncode == 0, printed + done.stderr.decode()
    assert done.stderr == b""
    assert MODEL in printed
    states = re.findall(r"^ +\d+  (?:task|status) .*?(submitted|working|completed)$", printed, re.MULTILINE)
    assert states == ["submitted", "working", "completed"]
    paragraph = re.search(
        r'artifact  "Answer"\n(.+?)\n +\d+-\d+  artifact  complete: (\d+) events', printed, re.S
    )
    assert paragraph is not None
    assert len(paragraph[1].split()) >= 1
    assert int(paragraph[2]) >= 2  # the answer was streamed
    assert re.search(r"usage +[1-9]\d* tokens in, [1-9]\d* out, [1-9][\d.]* tokens/s", printed)
    assert re.search(r"GetTask +[0-9a-f-]{36}  completed, [1-9]\d* characters", printed)
    assert "same id: yes, same state: yes, same text: yes" in printed
    assert "\x1b" not in printed
    assert store.exists()


@pytest.mark.skipif(unavailable_reason() is not None, reason="needs the local model")
async def test_a_demo_cuts_the_local_model_and_its_text_grows_on():
    done = await anyio.run_process([PROGRAM, "demo", "--once", "--cut", "--port", "0"], check=False)
    assert done.stderr == b""
    printed = done.stdout.decode()
    assert done.returncode == 0, printed + done.stderr.decode()
    parts = re.findall(r"artifact  (so far|complete): \d+ events, (\d+) characters$", printed, re.MULTILINE)
    assert [extent for extent, _ in parts] == ["so far", "complete"]
    assert "  continued attempt 2 by prefill, after the error stream_truncated\n" in printed
    final = re.search(r"final message +from the agent, (\d+) characters", printed)
    assert final is not None
    assert int(final[1]) == sum(int(length) for _, length in parts)
    assert "same id: yes, same state: yes, same text: yes" in printed


async def test_a_demo_that_goes_on_serves_others_and_ctrl_c_stops_it_and_the_model():
    async with await start("demo", "--port", "0", "--prompt", PROMPT) as demo:
        printed = await read_until(demo, "curl -N")
        found = re.search(r"serving at (http://\S+)", printed)
        assert found is not None
        assert f" ask {found[1]} " in printed
        assert f"the playground, a chat in the browser: {found[1]}/\n" in printed
        answer = await anyio.run_process([PROGRAM, "ask", found[1], PROMPT])
        assert answer.stdout.strip()
        assert b"tokens/s" in answer.stderr
        family = children(demo.pid)
        assert bool(family) == (unavailable_reason() is None)
        demo.send_signal(signal.SIGINT)
        with anyio.fail_after(10):
            rest = await read_all(demo)
            assert await demo.wait() == 0
        assert running(family) == []
    assert rest.rstrip().endswith("stopped")
    assert "Traceback" not in rest


async def test_a_demo_that_ends_before_its_response_has_an_exit_status():
    async with await start("demo", "--once", "--port", "0", "--recorded") as demo:
        await read_until(demo, "working")
        demo.send_signal(signal.SIGTERM)
        with anyio.fail_after(10):
            rest = await read_all(demo)
            assert await demo.wait() == 130
    assert "Traceback" not in rest


async def test_a_demo_does_not_continue_the_response_of_an_earlier_demo(tmp_path: Path):
    """The task of an interrupted demo fails. Otherwise, the next demo on this store would continue it, and could cut it."""
    store = f"sqlite:///{tmp_path}/t.db"
    arguments = ("demo", "--once", "--port", "0", "--recorded", "--store", store)
    async with await start(*arguments) as demo:
        await read_until(demo, "working")
        demo.send_signal(signal.SIGTERM)
        await read_all(demo)
    async with engine_with(Scripted(), Store(store), restart_interrupted=True) as engine:
        [task] = (await engine.list_tasks(TaskFilter(), limit=9)).tasks
    assert task.status.state is TaskState.FAILED

"""Several worker processes behind one address: they share connections, are restarted, and stop together."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import psutil

from support.processes import served
from support.rpc import Rpc, message, text_of
from support.upstream import ScriptedUpstream, openai_stream
from support.valkey import ValkeyServer

TESTS = Path(__file__).parents[2]
PATIENCE = 30.0


class Connection:
    """A connection to the worker that accepted it; while it is open, another worker accepts the next one.

    Attributes:
        process: That worker.
    """

    def __init__(self, both: TextIO) -> None:
        self._both = both
        self.process = psutil.Process(int(both.readline()))

    def order(self, order: str) -> str:
        """Send a command and wait until it was executed. Return the response, or "" if the worker has ended."""
        self._both.write(f"{order}\n")
        self._both.flush()
        return self._both.readline()


class Program:
    """`support.worker_processes` while it runs.

    Attributes:
        process: The parent of the workers.
        port: The port of the workers.
    """

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        self.process = process
        self.port = int(process.stdout.readline())

    @contextmanager
    def connected(self) -> Generator[Connection]:
        with (
            socket.create_connection(("127.0.0.1", self.port), PATIENCE) as connection,
            connection.makefile("rw") as both,
        ):
            yield Connection(both)

    def ended(self) -> tuple[int, str]:
        """Return the exit status and the output; no worker is left."""
        others = workers_of(self.process.pid)
        _, errors = self.process.communicate(timeout=PATIENCE)
        psutil.wait_procs(others, 0)
        assert not [each for each in others if each.is_running()]
        return self.process.returncode, errors


@contextmanager
def running(*how: str) -> Generator[Program]:
    process = subprocess.Popen(
        [sys.executable, "-m", "support.worker_processes", *how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )
    with process:
        try:
            yield Program(process)
        finally:
            process.kill()


def workers_of(parent: int) -> list[psutil.Process]:
    """Return the worker processes, without the resource tracker of `multiprocessing`."""
    try:
        children = psutil.Process(parent).children()
        return [child for child in children if "spawn_main" in "".join(child.cmdline())]
    except psutil.NoSuchProcess:
        return []


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)  # the process list is the only state to wait on


def test_processes_share_an_address_and_end_by_the_signal_of_the_first() -> None:
    with running("answer") as program:
        with program.connected() as one, program.connected() as other:
            assert one.process != other.process
            assert {one.process, other.process} == set(workers_of(program.process.pid))
            program.process.terminate()
            assert program.ended() == (0, "")


def test_one_that_ends_by_itself_is_started_again_and_the_other_serves_on() -> None:
    with running("answer") as program:
        with program.connected() as one, program.connected() as other:
            ends, stays = one.process, other.process
            one.order("exit 1")
        with program.connected() as served_on, program.connected() as anew:
            assert served_on.process == stays
            assert anew.process not in (stays, ends)
        program.process.send_signal(signal.SIGINT)
        assert program.ended() == (0, "a process ended (status 1) and is started again\n")


def test_one_that_cannot_start_ends_all_with_its_words_and_its_status(tmp_path: Path) -> None:
    with running("refuse-once", str(tmp_path)) as program:
        assert program.ended() == (2, "tailrace: there is no ink\n")


def test_a_program_that_is_terminated_while_it_starts_stops() -> None:
    with running("stopped") as program:
        assert program.ended() == (0, "")


def test_ctrl_c_at_a_terminal_is_handled_by_the_first_process() -> None:
    with running("answer") as program:
        with program.connected() as one, program.connected() as other:
            for each in (one, other):
                each.process.send_signal(signal.SIGINT)
                assert each.order("go on") == "done\n"
            program.process.send_signal(signal.SIGINT)
            assert program.ended() == (0, "")


def test_a_starting_process_leaves_ctrl_c_to_the_first_process() -> None:
    with running("interrupted") as program:
        with program.connected(), program.connected():
            program.process.terminate()
            assert program.ended() == (0, "")


def test_a_starting_process_handles_a_reload_later() -> None:
    with running("reloaded") as program:
        with program.connected(), program.connected():
            program.process.terminate()
            assert program.ended() == (0, "")


def test_a_second_signal_ends_those_that_do_not_listen_to_the_first() -> None:
    with running("answer") as program:
        with program.connected() as one, program.connected() as other:
            other.order("stubborn")
            stubborn = other.process
            program.process.terminate()
            one.process.wait(PATIENCE)
            assert stubborn.is_running()
            assert program.process.poll() is None
            program.process.terminate()
            assert program.ended() == (0, "")
            assert not stubborn.is_running()


def test_they_end_when_the_first_is_killed() -> None:
    with running("answer") as program:
        with program.connected() as one, program.connected() as other:
            workers = [one.process, other.process]
        program.process.kill()
        _, alive = psutil.wait_procs(workers, PATIENCE)
        assert not alive


async def test_a_server_of_two_processes_answers_while_one_of_them_is_killed(
    tmp_path: Path, postgresql_url: str, valkey: ValkeyServer
) -> None:
    async with ScriptedUpstream(openai_stream(["Hel", "lo"])) as upstream:
        model = ("--model", "openai:scripted", "--base-url", upstream.base_url)
        shared = ("--store", postgresql_url, "--events", valkey.url())
        with served(tmp_path / "log", *model, *shared, "--workers", "2") as server:
            await server.ready()

            async def answer() -> str:
                async with Rpc(server.url) as rpc:
                    return text_of((await rpc.result("SendMessage", message()))["task"])

            assert await answer() == "Hello"
            wait_until(lambda: len(workers_of(server.process.pid)) == 2)
            killed, stays = workers_of(server.process.pid)
            killed.kill()
            wait_until(lambda: "(status -9) and is started again" in server.log.read_text())
            assert await answer() == "Hello"
            wait_until(lambda: len(workers_of(server.process.pid)) == 2)
            assert stays in workers_of(server.process.pid)
            server.process.terminate()
            assert server.process.wait(PATIENCE) == 0
            assert not stays.is_running()

"""``tailrace ask``: an A2A client in the terminal."""

import json
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Annotated, TextIO

import anyio
import typer
from rich.console import Console
from rich.text import Text as Styled

from tailrace.server.cli.transcript import (
    ANSWER,
    Item,
    Pace,
    Remark,
    Status,
    Text,
    Transcript,
    for_terminal,
    in_words,
)
from tailrace.server.client import AgentClient, StreamEvent
from tailrace.streaming.lifecycle import TaskState
from tailrace.wrappers import ConfigurationError, TailraceError

COMPLETED, NOT_COMPLETED, WAITS, INTERRUPTED = 0, 1, 3, 130
_CANCEL_SECONDS = 2.0


def ask(
    url: Annotated[str, typer.Argument(help="Where the agent is, for example http://127.0.0.1:8000")],
    prompt: Annotated[str, typer.Argument(help="What to ask; - reads it from standard input.")],
    context: Annotated[str, typer.Option(help="Id of a conversation to go on with.")] = "",
    task: Annotated[str, typer.Option(help="Id of a task to answer, which waits for you.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the events as JSON lines.")] = False,
) -> None:
    """Ask an A2A agent, and print its answer as it streams.

    The answer goes to standard output as it is, everything about it to standard error. A dropped connection is gone
    on with where it broke; Ctrl-C cancels the task. Exit status: 0 completed, 1 failed, canceled or rejected, 2 the
    agent cannot be asked, 3 the agent waits for an answer, 130 interrupted.
    """
    if prompt == "-":
        prompt = sys.stdin.read()
    if not prompt.strip():
        raise ConfigurationError("the prompt is empty")
    screen = Screen(sys.stdout, Console(stderr=True, highlight=False))
    asking = partial(ask_agent, url, prompt, screen, context_id=context, task_id=task, as_json=as_json)
    try:
        status = anyio.run(_until_interrupted, asking)
    except KeyboardInterrupt:
        status = INTERRUPTED
    raise typer.Exit(status)


class Screen:
    """Where an answer is shown: its text on one stream, unchanged, and everything about it on another.

    Args:
        out: Takes the text of the answer. On a terminal, control characters are written out.
        notes: Takes everything else.
    """

    def __init__(self, out: TextIO, notes: Console) -> None:
        self._out = out
        self._notes = notes
        self._terminal = out.isatty()
        self._shared = self._terminal and notes.is_terminal  # the two streams meet on one screen
        self._answer_from = ""  # whose text was written to `out` last
        self._answer_open = False  # `out` stands in the middle of a line
        self._notes_open = False  # and so do the notes (or the screen that is shared)
        self._aside_from = ""  # whose text is being written to the notes

    def show(self, item: Item) -> None:
        """Print what is new."""
        if isinstance(item, Text):
            if item.channel == ANSWER:
                self.answer(item.text, item.source, again=item.again)
            else:
                self._aside(item)
        elif isinstance(item, Remark):
            self.note(f"{item.kind}: {item.text}", "cyan")
        else:
            self.note(f"{in_words(item.state)}{f': {item.message}' if item.message else ''}", "dim")

    def answer(self, text: str, source: str, *, again: bool = False) -> None:
        """Print more of the answer."""
        if again:
            self.note("the agent has replaced its answer; this is the new one:", "yellow")
        if self._answer_open and (again or source != self._answer_from):
            self._out.write("\n")
            self._notes_open = self._notes_open and not self._shared
        if self._aside_from:
            self._end_line()
        self._out.write(for_terminal(text) if self._terminal else text)
        self._out.flush()
        self._answer_from = source
        self._answer_open = not text.endswith("\n")
        if self._shared:
            self._notes_open = self._answer_open

    def json_line(self, value: object) -> None:
        """Print a JSON value in one line; its escapes are harmless for terminals and line readers."""
        self._out.write(json.dumps(value, ensure_ascii=True) + "\n")
        self._out.flush()

    def note(self, text: str, style: str) -> None:
        """Print something about the answer, on a line of its own."""
        self._end_line()
        self._notes.print(Styled(for_terminal(text), style), soft_wrap=True)

    def close(self) -> None:
        """End the line that the answer stands in."""
        if self._answer_open and (self._notes_open or not self._shared):
            self._out.write("\n")
            self._out.flush()
            self._notes_open = self._notes_open and not self._shared
        self._answer_open = False

    def _aside(self, item: Text) -> None:
        """Text that is not the answer, with a label before it: reasoning, a refusal."""
        if self._aside_from != item.source or item.again:
            self._end_line()
            self._notes.print(Styled(f"{item.channel}: ", "dim bold"), end="")
            self._aside_from = item.source
        self._notes.print(Styled(for_terminal(item.text), "dim"), end="", soft_wrap=True)
        self._notes_open = True

    def _end_line(self) -> None:
        if self._notes_open:
            self._notes.print()
        self._notes_open = False
        self._aside_from = ""


async def _until_interrupted(asking: Callable[[], Awaitable[int]]) -> int:
    """Run it until it ends or Ctrl-C is pressed.

    A scope that is cancelled stays so: the one exception by which asyncio tells of Ctrl-C may come where something
    that ends anyway takes it for its own.
    """
    if sys.platform == "win32":
        return await asking()  # no handlers of signals in its event loops
    status, failure = INTERRUPTED, None
    async with anyio.create_task_group() as group:

        async def listen() -> None:
            with anyio.open_signal_receiver(signal.SIGINT) as signals:
                listening.set()
                async for _ in signals:
                    group.cancel_scope.cancel()

        listening = anyio.Event()
        group.start_soon(listen)
        await listening.wait()
        try:
            status = await asking()
        except Exception as error:
            failure = error  # told as itself, not as one of a group
        group.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return status


async def ask_agent(
    url: str, prompt: str, screen: Screen, *, context_id: str = "", task_id: str = "", as_json: bool = False
) -> int:
    """Ask, show the answer, and return the exit status.

    When it is cancelled, it cancels the task, waiting for that a little while.

    Raises:
        TailraceError: As `AgentClient.stream`.
    """
    transcript, pace = Transcript(), Pace()

    def lost(error: TailraceError, attempt: int) -> None:
        screen.note(f"{error}; going on where it broke (try {attempt})", "yellow")

    async with AgentClient(url, on_reconnect=lost) as client:
        show = _json_shower(screen) if as_json else _text_shower(screen, transcript, pace)
        try:
            async with aclosing(client.stream(prompt, context_id=context_id, task_id=task_id)) as events:
                async for event in events:
                    show(event, transcript.read(event.response))
        except anyio.get_cancelled_exc_class():
            await _cancel(client, transcript, screen)
            raise
        finally:
            screen.close()
    return _conclude(url, transcript, pace, screen, quiet=as_json)


Shower = Callable[[StreamEvent, list[Item]], None]


def _json_shower(screen: Screen) -> Shower:
    def show(event: StreamEvent, items: list[Item]) -> None:
        screen.json_line(event.raw)

    return show


def _text_shower(screen: Screen, transcript: Transcript, pace: Pace) -> Shower:
    def show(event: StreamEvent, items: list[Item]) -> None:
        for item in items:
            if isinstance(item, Text):
                pace.text_came()
            if isinstance(item, Status) and _concludes(item.state):
                # Agents that know no artifacts put the answer here.
                if item.state is TaskState.COMPLETED and item.message and not transcript.answer:
                    screen.answer(item.message, "status")
            else:
                screen.show(item)

    return show


def _concludes(state: TaskState) -> bool:
    return state.terminal or state.interrupted


async def _cancel(client: AgentClient, transcript: Transcript, screen: Screen) -> None:
    """Whoever leaves with Ctrl-C wants the work to stop, not only to see no more of it."""
    if not transcript.task_id or (transcript.status and transcript.status.state.terminal):
        return
    with anyio.move_on_after(_CANCEL_SECONDS, shield=True):
        try:
            task = await client.cancel_task(transcript.task_id)
        except TailraceError as error:
            screen.note(f"the task could not be canceled: {error}", "yellow")
        else:
            screen.note(f"{in_words(task.status.state)} · task {task.id}", "dim")


def _conclude(url: str, transcript: Transcript, pace: Pace, screen: Screen, *, quiet: bool) -> int:
    """Say how it ended; return the exit status."""
    status = transcript.status
    if status is None:
        screen.note("the agent gave no answer", "red")
        return NOT_COMPLETED
    state = status.state
    place = " · ".join(
        f"{name} {id_}"
        for name, id_ in (("task", transcript.task_id), ("context", transcript.context_id))
        if id_
    )
    reason = f": {status.message}" if status.message else ""
    if state is TaskState.COMPLETED:
        if not quiet:
            said = reason if transcript.answer else ""
            screen.note(
                f"completed{said} · {pace.describe(transcript)}{' · ' if place else ''}{place}", "dim"
            )
        return COMPLETED
    if state.interrupted:
        how = "waits for your answer" if state is TaskState.INPUT_REQUIRED else "wants you to sign in"
        screen.note(f"the agent {how}{reason}", "bold")
        call = f"tailrace ask {shlex.quote(url)} ANSWER --task {transcript.task_id}"
        if transcript.context_id:
            call += f" --context {transcript.context_id}"
        screen.note(f"to answer: {call}", "dim")
        return WAITS
    screen.note(f"{in_words(state)}{reason} · {place}", "red")
    return NOT_COMPLETED

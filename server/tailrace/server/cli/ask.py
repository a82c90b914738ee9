"""``tailrace ask``: an A2A client in the terminal."""

import json
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any
from uuid import uuid4

import anyio
from rich.console import Console

from tailrace.server.cli.ask_output import MarkdownScreen, Screen
from tailrace.server.cli.interrupts import INTERRUPTED
from tailrace.server.cli.transcript import (
    Item,
    Pace,
    Status,
    Text,
    Transcript,
    in_words,
    remarks,
    shown_texts,
)
from tailrace.server.remote.client import AgentClient, StreamEvent
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Message, Part, Role
from tailrace.streaming.conversion.approval_parts import RESPONSES
from tailrace.wrappers import ConfigurationError, TailraceError, UpstreamError

COMPLETED, NOT_COMPLETED, WAITS = 0, 1, 3
_CANCEL_SECONDS = 2.0


def ask(
    url: str,
    prompt: str = "",
    *,
    context: str = "",
    task: str = "",
    resume: str = "",
    approve: str = "",
    reject: str = "",
    reason: str = "",
    arguments: str = "",
    history: bool = False,
    markdown: bool | None = None,
    token: str = "",
    allow_origin: Sequence[str] = (),
    as_json: bool = False,
) -> int:
    """Send a message, print the response, and return the exit status.

    Args:
        url: The URL of the agent.
        prompt: The text of the message; ``-`` for standard input; empty for no message.
        context: The id of the conversation; a new conversation if empty.
        task: The id of the task that the message continues; a new task if empty.
        resume: The id of a task to subscribe to instead of sending a message; otherwise empty.
        approve: The digest of a tool call to approve instead of sending a prompt; otherwise empty.
        reject: The digest of a tool call to reject instead of sending a prompt; otherwise empty.
        reason: The reason for the rejection, which the model receives.
        arguments: A JSON object that replaces the arguments of the approved call; empty for no change.
        history: True to print the earlier messages of the conversation first.
        markdown: Whether to render Markdown; None: on a terminal.
        token: As for `AgentClient`.
        allow_origin: As for `AgentClient`.
        as_json: True to print each event as a line of JSON.

    Raises:
        ConfigurationError: The arguments contradict each other, an argument is missing, or ``arguments`` is not valid JSON.
        TailraceError: As for `AgentClient.stream`.
    """
    if prompt == "-":
        prompt = sys.stdin.read()
    if resume and (prompt or task):
        raise ConfigurationError("--resume follows a task and sends no message: omit the prompt and --task")
    if history and not context:
        raise ConfigurationError(
            "--history requires the conversation: --context ID, which `tailrace ask` prints"
        )
    message: str | Message = prompt
    if approve or reject:
        if prompt or not task or (approve and reject):
            raise ConfigurationError(
                "--approve and --reject decide about a call: use one of them, with --task and no prompt"
            )
        message = decision_message(approve, reject, reason, arguments)
    elif reason or arguments:
        raise ConfigurationError(
            "--reason requires --reject DIGEST, and --arguments requires --approve DIGEST"
        )
    elif not prompt.strip() and not resume and not history:
        raise ConfigurationError("the prompt is empty: write a message, or - to read it from standard input")
    console = Console(stderr=True, highlight=False)
    drawn = sys.stdout.isatty() if markdown is None else markdown
    screen = MarkdownScreen(sys.stdout, console) if drawn and not as_json else Screen(sys.stdout, console)
    request = partial(
        ask_agent,
        url,
        message,
        screen,
        context_id=context,
        task_id=task,
        resume=resume,
        history=history,
        token=token,
        allowed_origins=allow_origin,
        as_json=as_json,
    )
    try:
        status = anyio.run(_until_interrupted, request)
    except KeyboardInterrupt:
        status = INTERRUPTED
    return status


async def _until_interrupted(request: Callable[[], Awaitable[int]]) -> int:
    """Run a function until it ends or Ctrl-C is pressed.

    Ctrl-C cancels an anyio scope. asyncio's own handler would cancel only once, and code could catch this ``CancelledError``.
    """
    if sys.platform == "win32":
        return await request()  # event loops on Windows do not support signal handlers
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
            status = await request()
        except Exception as error:
            failure = error  # the task group would wrap it
        group.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return status


def decision_message(approve: str, reject: str, reason: str, arguments: str) -> Message:
    """Return a message with a decision about a tool call.

    Raises:
        ConfigurationError: ``arguments`` is not valid JSON.
    """
    entry: dict[str, Any] = {"digest": approve or reject, "decision": "approve" if approve else "reject"}
    if arguments:
        try:
            entry |= {"decision": "edit", "arguments": json.loads(arguments)}
        except ValueError as error:
            raise ConfigurationError(f"--arguments: not a JSON object: {error}") from None
    if reason:
        entry["reason"] = reason
    return Message(message_id=str(uuid4()), role=Role.USER, parts=(Part(data={RESPONSES: [entry]}),))


async def ask_agent(
    url: str,
    prompt: str | Message,
    screen: Screen,
    *,
    context_id: str = "",
    task_id: str = "",
    resume: str = "",
    history: bool = False,
    token: str = "",
    allowed_origins: Sequence[str] = (),
    as_json: bool = False,
) -> int:
    """Send a message, print the response, and return the exit status.

    If this function is cancelled while a task is running, it also cancels the task, within two seconds.

    Args:
        url: The URL of the agent.
        prompt: The message or its text; empty to send no message.
        screen: Prints the response.
        context_id: As ``context`` of `ask`.
        task_id: As ``task`` of `ask`.
        resume: As for `ask`.
        history: As for `ask`.
        token: As for `AgentClient`.
        allowed_origins: As for `AgentClient`.
        as_json: As for `ask`.

    Raises:
        TailraceError: As for `AgentClient.stream`.
    """
    transcript, pace = Transcript(), Pace(live=not resume)

    def lost(error: TailraceError, attempt: int) -> None:
        screen.note(f"{error}; resuming after the last event (attempt {attempt})", "yellow")

    async with AgentClient(url, token=token, on_reconnect=lost, allowed_origins=allowed_origins) as client:
        show = _json_shower(screen) if as_json else _text_shower(screen, transcript, pace)
        if history:
            _show_history(await client.conversation(context_id), screen, as_json=as_json)
            if not prompt and not resume:
                screen.close()
                return COMPLETED
        stream = (
            client.follow(resume) if resume else client.stream(prompt, context_id=context_id, task_id=task_id)
        )
        try:
            async with aclosing(stream) as events:
                async for event in events:
                    show(event, transcript.read(event.response))
        except TailraceError as error:
            if isinstance(error, UpstreamError) and "401" in (error.code, str(error.status)):
                screen.note("the agent requires authentication: use --token, or set TAILRACE_TOKEN", "yellow")
            if transcript.task_id and not (transcript.status and transcript.status.state.terminal):
                call = f"tailrace ask {shlex.quote(url)} --resume {shlex.quote(transcript.task_id)}"
                screen.note(f"to follow the task later: {call}", "dim")
            raise
        except anyio.get_cancelled_exc_class():
            await _cancel(client, transcript, screen)
            raise
        finally:
            screen.close()
    return _conclude(url, transcript, pace, screen, quiet=as_json)


def _show_history(messages: Sequence[Message], screen: Screen, *, as_json: bool) -> None:
    for message in messages:
        if as_json:
            screen.json_line(message.to_dict())
            continue
        mine = message.role is Role.USER
        for part, text in shown_texts(message.parts):
            if part.text and mine:
                screen.note(f"> {part.text}", "bold")
            elif text:
                screen.print_response(text, message.message_id)
        for remark in remarks(message.parts):
            screen.show(remark)
    if not messages:
        screen.note("this conversation has no messages, or belongs to another caller", "dim")


Shower = Callable[[StreamEvent, list[Item]], None]


def _json_shower(screen: Screen) -> Shower:
    def show(event: StreamEvent, items: list[Item]) -> None:
        screen.json_line(event.raw)

    return show


def _text_shower(screen: Screen, transcript: Transcript, pace: Pace) -> Shower:
    def show(event: StreamEvent, items: list[Item]) -> None:
        for item in items:
            if isinstance(item, Text):
                pace.record_text()
            if isinstance(item, Status) and _concludes(item.state):
                # Agents that create no artifacts send the response in the message of the status.
                if item.state is TaskState.COMPLETED and item.message and not transcript.response_text:
                    screen.print_response(item.message, "status")
            else:
                screen.show(item)

    return show


def _concludes(state: TaskState) -> bool:
    # AUTH_REQUIRED is printed when it arrives. The task may continue after the user has signed in elsewhere.
    return state.terminal or state is TaskState.INPUT_REQUIRED


async def _cancel(client: AgentClient, transcript: Transcript, screen: Screen) -> None:
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
    status = transcript.status
    if status is None:
        screen.note("the agent sent no response", "red")
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
            suffix = reason if transcript.response_text else ""
            screen.note(
                f"completed{suffix} · {pace.describe(transcript)}{' · ' if place else ''}{place}", "dim"
            )
        return COMPLETED
    if state.interrupted:
        how = "waits for your reply" if state is TaskState.INPUT_REQUIRED else "requires you to sign in"
        screen.note(f"the agent {how}{reason}", "bold")
        for digest in status.digests:
            decide = (
                f"tailrace ask {shlex.quote(url)} --task {transcript.task_id} --approve {shlex.quote(digest)}"
            )
            screen.note(f"to approve (or --reject DIGEST --reason TEXT): {decide}", "dim")
        if status.digests:
            return WAITS
        call = f"tailrace ask {shlex.quote(url)} REPLY --task {transcript.task_id}"
        if transcript.context_id:
            call += f" --context {transcript.context_id}"
        screen.note(f"to reply: {call}", "dim")
        return WAITS
    screen.note(f"{in_words(state)}{reason} · {place}", "red")
    return NOT_COMPLETED

"""``tailrace ask``: output streams and exit status."""

import io
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest
from rich.console import Console

from support.live_server import serving
from support.proxy import CuttingProxy
from support.upstream import Cut, Head, Received, ScriptedUpstream, Step, json_answer, sse
from tailrace.server import DirectHandler, Settings, Turn, create_app
from tailrace.server.auth.authentication import Authenticator, Credentials, Identity
from tailrace.server.cli.ask import ask, ask_agent, decision_message
from tailrace.server.cli.ask_output import Screen
from tailrace.server.remote.client import AgentClient
from tailrace.server.runtime.auth_error import AuthError
from tailrace.streaming.a2a import Artifact, Message, Part, Role, TaskNotFoundError, TaskState
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.conversion.approval_parts import recorded_decisions
from tailrace.streaming.task.task_record import agent_message
from tailrace.streaming.task.updates import ArtifactUpdate, StatusUpdate, TextDelta, Update
from tailrace.wrappers import ConfigurationError, UpstreamError

STORE = Settings(store="sqlite://")
TOOL_CALL = {"tool_calls": [{"call_id": "1", "name": "weather", "arguments": {"city": "Oslo"}}]}
Handling = Callable[[Turn], AsyncIterator[Update | Message]]


class Shown:
    """Collected output; with ``terminal=True`` both streams are one screen."""

    def __init__(self, *, terminal: bool = False) -> None:
        self.out = Terminal() if terminal else io.StringIO()
        self.notes = self.out if terminal else io.StringIO()
        console = Console(file=self.notes, force_terminal=terminal, color_system=None, width=60)
        self.screen = Screen(self.out, console)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def answer(text: str, *, last: bool = True, id_: str = "text", channel: str = "text") -> ArtifactUpdate:
    metadata = {EXTENSION_URI: {"channel": channel}}
    return ArtifactUpdate(Artifact(artifact_id=id_, parts=(Part(text=text),), metadata=metadata), last=last)


def saying(*updates: Update) -> Handling:
    async def handle(turn: Turn) -> AsyncIterator[Update | Message]:
        for update in updates:
            yield update

    return handle


async def run_ask(
    handling: Handling, *, terminal: bool = False, as_json: bool = False
) -> tuple[int, str, str]:
    """Ask an agent with this handler; return the exit status, the output, and the notes."""
    shown = Shown(terminal=terminal)
    async with serving(create_app(STORE, handler=handling)) as url:
        status = await ask_agent(url, "hello", shown.screen, as_json=as_json)
    return status, shown.out.getvalue(), shown.notes.getvalue()


class Known(Authenticator):
    """Authentication by bearer token."""

    async def authenticate(self, credentials: Credentials) -> Identity:
        if credentials.bearer != "open-sesame":
            raise AuthError("who are you?", challenge="Bearer", presented=bool(credentials.bearer))
        return Identity("alice")

    def schemes(self) -> dict[str, Any]:
        return {"bearer": {"httpAuthSecurityScheme": {"scheme": "Bearer"}}}


@pytest.mark.parametrize("header", ["Authorization", "X-API-Key"])
async def test_a_token_is_sent_in_the_form_that_the_card_requires(header: str) -> None:
    keys = Settings(store="sqlite://", caller_keys="alice:open-sesame")  # pyright: ignore[reportArgumentType]
    known = create_app(STORE, handler=THINKS, authenticator=Known())
    app = known if header == "Authorization" else create_app(keys, handler=THINKS)
    async with serving(app) as url:
        shown = Shown()
        assert await ask_agent(url, "hello", shown.screen, token="open-sesame") == 0
        assert shown.out.getvalue() == "The answer is 42.\n"
        for wrong in ("", "sesame"):
            refused = Shown()
            with pytest.raises(UpstreamError) as raised:
                await ask_agent(url, "hello", refused.screen, token=wrong)
            assert "sesame" not in str(raised.value)
            assert "use --token" in refused.notes.getvalue()


THINKS = saying(
    StatusUpdate(TaskState.WORKING),
    answer("Let me", last=False, id_="r", channel="reasoning"),
    TextDelta("r", " see.", last=True),
    answer("The answer ", last=False),
    TextDelta("text", "is 42.", last=True),
    StatusUpdate(
        TaskState.COMPLETED, metadata={EXTENSION_URI: {"usage": {"inputTokens": 9, "outputTokens": 4}}}
    ),
)


async def test_the_answer_alone_goes_to_the_output_and_everything_about_it_to_the_notes():
    status, out, notes = await run_ask(THINKS)
    assert status == 0
    assert out == "The answer is 42.\n"
    submitted, working, reasoning, end = notes.splitlines()
    assert (submitted, working, reasoning) == ("submitted", "working", "reasoning: Let me see.")
    assert end.startswith("completed · 9 tokens in, 4 out, ")
    assert " tokens/s, the first after " in end
    assert " · task " in end


async def test_on_a_terminal_the_two_share_the_screen_line_by_line():
    status, screen, _ = await run_ask(THINKS, terminal=True)
    *lines, end = screen.splitlines()
    assert status == 0
    assert lines == ["submitted", "working", "reasoning: Let me see.", "The answer is 42."]
    assert end.startswith("completed")


async def test_control_characters_reach_a_pipe_as_they_are_and_a_terminal_written_out():
    handling = saying(answer("a\x1b[31mb\n"))
    assert (await run_ask(handling))[1] == "a\x1b[31mb\n"
    assert "a\\x1b[31mb\n" in (await run_ask(handling, terminal=True))[1]


async def test_several_artifacts_stand_on_lines_of_their_own():
    handling = saying(
        answer("one", id_="1"), answer("two", id_="2"), answer("three\n", id_="3"), answer("4", id_="4")
    )
    assert (await run_ask(handling))[1] == "one\ntwo\nthree\n4\n"
    assert "one\ntwo\nthree\n4\n" in (await run_ask(handling, terminal=True))[1]


async def test_a_failed_task_gives_its_reason_and_status_1():
    status, out, notes = await run_ask(
        saying(answer("half", last=False), StatusUpdate(TaskState.FAILED, agent_message("no more paper")))
    )
    assert (status, out) == (1, "half\n")
    assert notes.splitlines()[-1].startswith("failed: no more paper · task ")


async def test_a_waiting_task_prints_how_to_respond_and_exits_with_status_3():
    calls = Artifact(artifact_id="calls", parts=(Part(data=TOOL_CALL),))
    question = agent_message("What is the weather?")
    status, out, notes = await run_ask(
        saying(ArtifactUpdate(calls), StatusUpdate(TaskState.INPUT_REQUIRED, question))
    )
    assert (status, out) == (3, "")
    submitted, call, waits, how = notes.splitlines()
    assert submitted == "submitted"
    assert call == 'tool call: weather({"city": "Oslo"})'
    assert waits == "the agent waits for your reply: What is the weather?"
    assert how.startswith("to reply: tailrace ask http://127.0.0.1:")
    assert " REPLY --task " in how
    assert " --context " in how


async def test_a_call_that_waits_for_an_approval_is_shown_with_the_command_that_approves_it():
    request = {
        "call_id": "1",
        "name": "send",
        "arguments": {"to": "ann"},
        "canonical_arguments": '{"to":"ann"}',
        "digest": "d1",
        "expires_at": "2100-01-01T00:00:00Z",
    }
    question = Message(
        message_id="q",
        role=Role.AGENT,
        parts=(Part(text="Approval required: send"), Part(data={"approval_requests": [request]})),
    )

    async def handle(turn: Turn) -> AsyncIterator[Update | Message]:
        if turn.number == 1:
            yield StatusUpdate(TaskState.INPUT_REQUIRED, question)
        else:
            [recorded] = recorded_decisions(turn.message)
            yield answer(f"{recorded.decision} {recorded.arguments}")

    shown = Shown()
    async with serving(create_app(STORE, handler=handle)) as url:
        assert await ask_agent(url, "send", shown.screen) == 3
        notes = " ".join(shown.notes.getvalue().split())
        assert 'approval required: send({"to":"ann"}), digest d1, until 2100-01-01T00:00:00Z' in notes
        assert f"tailrace ask {url} --task" in notes
        assert "--approve d1" in notes
        words = notes.split()
        task_id = words[words.index("--task") + 1]
        edit = decision_message("d1", "", "", '{"to": "bob"}')
        status = await ask_agent(url, edit, shown.screen, task_id=task_id)
    assert shown.out.getvalue() == "edit {'to': 'bob'}\n"
    assert status == 0


@pytest.mark.parametrize(
    "options",
    [
        {"approve": "d"},
        {"approve": "d", "reject": "d", "task": "t"},
        {"reject": "d", "task": "t", "prompt": "x"},
        {"reason": "no", "prompt": "x"},
        {"approve": "d", "task": "t", "arguments": "{"},
    ],
)
def test_options_of_a_decision_that_contradict_each_other_are_an_error(options: dict[str, Any]):
    with pytest.raises(ConfigurationError, match=r"--(approve|reject|reason|arguments)"):
        ask("http://127.0.0.1:1", **options)


async def test_an_agent_that_requires_a_sign_in_is_reported():
    status, _, notes = await run_ask(saying(StatusUpdate(TaskState.AUTH_REQUIRED)))
    assert status == 3
    assert "the agent requires you to sign in" in notes


async def test_a_task_that_waits_is_answered_with_its_id():
    async def handle(turn: Turn) -> AsyncIterator[Update | Message]:
        if turn.number == 1:
            yield StatusUpdate(TaskState.INPUT_REQUIRED, agent_message("Which?"))
        else:
            yield answer(f"{len(turn.history.conversation)} messages")

    shown = Shown()
    async with serving(create_app(STORE, handler=handle)) as url:
        assert await ask_agent(url, "buy", shown.screen) == 3
        words = shown.notes.getvalue().split()
        task_id = words[words.index("--task") + 1]
        context_id = words[words.index("--context") + 1]
        assert await ask_agent(url, "red", shown.screen, task_id=task_id, context_id=context_id) == 0
        assert await ask_agent(url, "and now?", shown.screen, context_id=context_id) == 3
        with pytest.raises(TaskNotFoundError):
            await ask_agent(url, "red", shown.screen, task_id="nobody")
    assert "messages\n" in shown.out.getvalue()


async def test_an_answer_that_stands_in_the_last_status_is_an_answer():
    status, out, notes = await run_ask(saying(StatusUpdate(TaskState.COMPLETED, agent_message("42"))))
    assert (status, out) == (0, "42\n")
    status, out, notes = await run_ask(
        saying(answer("41"), StatusUpdate(TaskState.COMPLETED, agent_message("all done")))
    )
    assert (status, out) == (0, "41\n")
    assert "completed: all done" in notes


async def test_a_direct_message_is_an_answer():
    async def handle(turn: Turn) -> AsyncIterator[Update | Message]:
        yield agent_message("hi")

    shown = Shown()
    async with serving(create_app(STORE, handler=DirectHandler(handle))) as url:
        assert await ask_agent(url, "hello", shown.screen) == 0
    assert shown.out.getvalue() == "hi\n"


async def test_json_output_has_one_line_per_event_and_nothing_else():
    status, out, notes = await run_ask(THINKS, as_json=True)
    events = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    assert notes == ""
    assert [next(iter(event)) for event in events] == [
        "task",
        "statusUpdate",
        "artifactUpdate",
        "artifactUpdate",
        "artifactUpdate",
        "artifactUpdate",
        "statusUpdate",
    ]


async def test_a_dropped_connection_is_mentioned_and_nothing_of_the_answer_is_lost():
    pieces = [f"{number} " for number in range(50)]
    shown = Shown()
    handling = saying(answer(pieces[0], last=False), *(TextDelta("text", piece) for piece in pieces[1:]))
    async with serving(create_app(STORE, handler=handling)) as url, CuttingProxy(url) as proxy:
        proxy.cut_after(4000)
        assert await ask_agent(proxy.url, "hello", shown.screen) == 0
    assert proxy.cuts == 1
    assert shown.out.getvalue() == "".join(pieces) + "\n"
    assert "broke off" in shown.notes.getvalue()
    assert "resuming after the last event (attempt 1)" in shown.notes.getvalue()


def foreign(request: Received) -> list[Step]:
    """An agent that does not number events, and gives another answer the second time."""
    if request.method == "GET":
        return json_answer({"supportedInterfaces": [{"url": "/", "protocolBinding": "JSONRPC"}]})
    piece = {"artifactId": "a", "parts": [{"text": "yes"}]}
    working = {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_WORKING"}}
    if request.json["method"] == "SendStreamingMessage":
        update = {"taskId": "t", "contextId": "c", "artifact": piece}
        return [sse({"result": {"task": working}}, {"result": {"artifactUpdate": update}}), Cut()]
    done = {**working, "status": {"state": "TASK_STATE_COMPLETED"}}
    return [sse({"result": {"task": {**done, "artifacts": [{**piece, "parts": [{"text": "no"}]}]}}})]


async def test_a_replaced_response_is_printed_again():
    shown = Shown()
    async with ScriptedUpstream(foreign) as server:
        assert await ask_agent(server.base_url.removesuffix("/v1"), "hello", shown.screen) == 0
    assert shown.out.getvalue() == "yes\nno\n"
    assert "the agent has replaced its response" in shown.notes.getvalue()


async def test_an_agent_without_output_has_not_responded():
    def silent(request: Received) -> list[Step]:
        return foreign(request) if request.method == "GET" else [Head()]

    shown = Shown()
    async with ScriptedUpstream(silent) as server:
        with pytest.raises(UpstreamError, match="ended the stream"):
            await ask_agent(server.base_url.removesuffix("/v1"), "hello", shown.screen)


async def run(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    program = [sys.executable, "-c", "from tailrace.server.cli import main; main()"]
    return await anyio.run_process([*program, "ask", *arguments], input=stdin, check=False)


async def test_the_command_reads_its_prompt_from_standard_input_and_is_fit_for_a_pipe():
    async def echo(turn: Turn) -> AsyncIterator[Update | Message]:
        yield answer(f"You said: {turn.message.parts[0].text}")

    async with serving(create_app(STORE, handler=echo)) as url:
        done = await run(url, "-", stdin="grüße\n".encode())
    assert done.returncode == 0
    assert done.stdout.decode() == "You said: grüße\n"
    assert b"\x1b" not in done.stderr


async def test_an_agent_that_cannot_be_reached_is_one_line_and_status_2():
    done = await run("http://127.0.0.1:1", "hello")
    assert done.returncode == 2
    assert done.stdout == b""
    [line] = done.stderr.decode().splitlines()
    assert line.startswith("tailrace: the agent at http://127.0.0.1:1/")
    assert "cannot be reached" in line


def test_an_empty_prompt_is_refused():
    with pytest.raises(ConfigurationError, match="the prompt is empty"):
        ask("http://127.0.0.1:1", " \n")


async def test_ctrl_c_cancels_the_task():
    stopped = anyio.Event()

    async def think(turn: Turn) -> AsyncIterator[Update | Message]:
        yield answer("I think", last=False)
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()

    async with serving(create_app(STORE, handler=think)) as url:
        program = [sys.executable, "-c", "from tailrace.server.cli import main; main()", "ask", url, "hello"]
        async with await anyio.open_process(program) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert await process.stdout.receive() == b"I think"
            process.send_signal(signal.SIGINT)
            with anyio.fail_after(10):
                await stopped.wait()
                assert await process.wait() == 130
            notes = b"".join([data async for data in process.stderr]).decode()
    assert "canceled · task " in notes
    assert "Traceback" not in notes


# --- conversations ----------------------------------------------------------------------------------------------


async def test_a_task_that_was_begun_before_is_followed_to_its_end_and_shown_whole() -> None:
    go_on = anyio.Event()

    async def slowly(turn: Turn) -> AsyncIterator[Update | Message]:
        yield answer("Hel", last=False)
        await go_on.wait()
        yield TextDelta("text", "lo")

    shown = Shown()
    async with serving(create_app(STORE, handler=slowly)) as url, AgentClient(url) as client:
        stream = client.stream("?", context_id="c")
        task = (await anext(stream)).response.task
        assert task is not None
        await stream.aclose()  # the terminal is closed
        async with anyio.create_task_group() as group:

            async def resume() -> None:
                assert await ask_agent(url, "", shown.screen, resume=task.id) == 0

            group.start_soon(resume)
            go_on.set()
        assert shown.out.getvalue() == "Hello\n"
        again = Shown()
        assert await ask_agent(url, "", again.screen, resume=task.id) == 0
        assert again.out.getvalue() == "Hello\n"
        assert "completed · 5 characters · task" in again.notes.getvalue()
        with pytest.raises(TaskNotFoundError):
            await ask_agent(url, "", again.screen, resume="nothing")


async def test_history_prints_the_earlier_messages_of_the_conversation() -> None:
    async def repeat(turn: Turn) -> AsyncIterator[Update | Message]:
        yield answer(f"You said {turn.message.parts[0].text}.")

    first, second, third = Shown(), Shown(), Shown()
    async with serving(create_app(STORE, handler=repeat)) as url:
        await ask_agent(url, "one", first.screen, context_id="c")
        await ask_agent(url, "", second.screen, context_id="c", history=True)
        await ask_agent(url, "", third.screen, context_id="unknown", history=True)
    assert second.notes.getvalue() == "> one\n"
    assert second.out.getvalue() == "You said one.\n"
    assert "this conversation has no messages" in third.notes.getvalue()


@pytest.mark.parametrize(
    ("options", "words"), [({"resume": "t"}, "--resume"), ({"history": True}, "--context")]
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        ask("http://127.0.0.1:1", "prompt", **options)


async def test_a_lost_connection_prints_how_to_resume_the_task() -> None:
    def leaving(request: Received) -> list[Step]:
        if request.method == "GET" or request.json["method"] == "SendStreamingMessage":
            return foreign(request)
        return json_answer({}, 403)

    shown = Shown()
    async with ScriptedUpstream(leaving) as server:
        with pytest.raises(UpstreamError):
            await ask_agent(server.base_url.removesuffix("/v1"), "hello", shown.screen)
    assert shown.out.getvalue() == "yes\n"
    notes = shown.notes.getvalue().replace("\n", " ")
    assert "to follow the task later: tailrace ask" in notes
    assert "--resume t" in notes

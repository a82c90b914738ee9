"""Approvals of tool calls: requests, decisions, and what runs."""

import shutil
from asyncio import CancelledError
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import anyio.from_thread
import msgspec
import pytest
import rfc8785
from pydantic import SecretStr

from support.live_server import serving
from support.rounds import answer, model_at, sent
from support.rpc import Rpc, message
from support.upstream import Hang, ScriptedUpstream, SetEvent
from tailrace.server import AgentHandler, Settings, create_app
from tailrace.server.runtime.active_task import CallContext
from tailrace.server.runtime.approvals import LOST, NOT_BEGUN, parse_approvers
from tailrace.server.runtime.caller import Caller
from tailrace.streaming import Agent
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.tools.approvals import ApprovalPolicy
from tailrace.wrappers import ConfigurationError

MAIL = {"to": "ann@example.com", "amount": 1e2}
CALL = ("c1", "send", MAIL)


class Sent:
    """A tool that records its calls, and may wait or fail."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.started = anyio.Event()
        self.go_on = anyio.Event()
        self.go_on.set()

    async def send(self, to: str, amount: float = 0) -> str:
        """Send a mail."""
        self.calls.append({"to": to, "amount": amount})
        self.started.set()
        await self.go_on.wait()
        return f"sent to {to}"


async def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


@asynccontextmanager
async def served(
    upstream: ScriptedUpstream,
    tool: Sent,
    policy: ApprovalPolicy | None = None,
    store: str = "sqlite://",
    **settings: Any,
) -> AsyncGenerator[Rpc]:
    agent: Agent[str] = Agent(
        model_at(upstream), tools=[tool.send, weather], approvals=policy or ApprovalPolicy(["send"])
    )
    app = create_app(Settings(store=store, **settings), handler=AgentHandler(agent))
    async with serving(app) as url, Rpc(url) as rpc:
        yield rpc


async def ask(rpc: Rpc, text: str = "Send it.") -> dict[str, Any]:
    return (await rpc.result("SendMessage", message(text, contextId="c")))["task"]


def decision(task: dict[str, Any], *entries: dict[str, Any], **members: Any) -> dict[str, Any]:
    """The params of a send with decisions."""
    parts: list[dict[str, Any]] = [{"data": {"approval_responses": list(entries)}}]
    fields = {"messageId": str(uuid4()), "role": "ROLE_USER", "taskId": task["id"], "parts": parts}
    return {"message": fields, **members}


async def decide(rpc: Rpc, task: dict[str, Any], *entries: dict[str, Any]) -> dict[str, Any]:
    return (await rpc.result("SendMessage", decision(task, *entries)))["task"]


def requests_of(task: dict[str, Any]) -> list[dict[str, Any]]:
    parts = task["status"].get("message", {}).get("parts", [])
    return [each for part in parts for each in part.get("data", {}).get("approval_requests", ())]


def recorded_in(task: dict[str, Any]) -> dict[str, Any]:
    """The only decision that the history of a task has recorded."""
    facts = [each.get("metadata", {}).get(EXTENSION_URI, {}) for each in task["history"]]
    [recorded] = [each for fact in facts for each in fact.get("approvals", {}).get("decisions", ())]
    return recorded


def state_of(task: dict[str, Any]) -> str:
    return task["status"]["state"].removeprefix("TASK_STATE_")


def results_of(request: list[dict[str, Any]]) -> list[str]:
    """The tool results in a request to the model."""
    return [each["content"] for each in request if each["role"] == "tool"]


async def test_a_call_waits_with_its_canonical_arguments_a_digest_and_an_expiry_and_runs_when_approved() -> (
    None
):
    tool = Sent()
    async with ScriptedUpstream(answer(calls=[CALL]), answer("Done.")) as upstream:
        async with served(upstream, tool) as rpc:
            task = await ask(rpc)
            assert state_of(task) == "INPUT_REQUIRED"
            [request] = requests_of(task)
            assert tool.calls == []
            ended = await decide(rpc, task, {"digest": request["digest"], "decision": "approve"})
        second = await upstream.received(1)
    assert request["canonical_arguments"] == '{"amount":100,"to":"ann@example.com"}'
    signed = rfc8785.dumps({"arguments": MAIL, "callId": "c1", "name": "send"})
    assert request["digest"] == sha256(signed).hexdigest()
    assert (request["call_id"], request["name"], request["arguments"]) == ("c1", "send", MAIL)
    assert datetime.fromisoformat(request["expires_at"]) > datetime.now(UTC)
    assert not any("tool_calls" in part.get("data", {}) for part in task["status"]["message"]["parts"])
    assert state_of(ended) == "COMPLETED"
    assert tool.calls == [MAIL]
    assert [each["role"] for each in sent(second)] == ["user", "assistant", "tool"]
    assert results_of(sent(second)) == ["sent to ann@example.com"]
    recorded = recorded_in(ended)
    assert (recorded["decision"], recorded["digest"]) == ("approve", request["digest"])


async def test_a_rejection_gives_the_model_the_reason_and_runs_nothing() -> None:
    tool = Sent()
    async with ScriptedUpstream(answer(calls=[CALL]), answer("As you wish.")) as upstream:
        async with served(upstream, tool) as rpc:
            task = await ask(rpc)
            [request] = requests_of(task)
            ended = await decide(
                rpc, task, {"digest": request["digest"], "decision": "reject", "reason": "too expensive"}
            )
        second = await upstream.received(1)
    assert state_of(ended) == "COMPLETED"
    assert tool.calls == []
    assert results_of(sent(second)) == [
        '{"error": "the user rejected the call: too expensive; the tool did not run"}'
    ]


async def test_an_edit_runs_the_call_with_other_arguments_which_the_model_receives_with_a_new_digest() -> (
    None
):
    tool = Sent()
    other = {"to": "bob@example.com", "amount": 5}
    async with ScriptedUpstream(answer(calls=[CALL]), answer("Done.")) as upstream:
        async with served(upstream, tool) as rpc:
            task = await ask(rpc)
            [request] = requests_of(task)
            ended = await decide(
                rpc, task, {"digest": request["digest"], "decision": "edit", "arguments": other}
            )
        second = await upstream.received(1)
    assert tool.calls == [other]
    [call] = sent(second)[1]["tool_calls"]
    assert call["function"]["arguments"] == '{"to": "bob@example.com", "amount": 5}'
    recorded = recorded_in(ended)
    signed = rfc8785.dumps({"arguments": other, "callId": "c1", "name": "send"})
    assert recorded["digest"] == sha256(signed).hexdigest() != request["digest"]


async def test_calls_without_an_approval_run_at_once_and_decisions_may_come_one_by_one() -> None:
    tool = Sent()
    calls = [("a", "weather", {"city": "Rome"}), CALL, ("c2", "send", {"to": "bob"})]
    async with ScriptedUpstream(answer(calls=calls), answer("Done.")) as upstream:
        async with served(upstream, tool) as rpc:
            task = await ask(rpc)
            first, second = requests_of(task)
            assert "tool-result-1" in [each["artifactId"] for each in task["artifacts"]]
            waiting = await decide(rpc, task, {"digest": first["digest"], "decision": "approve"})
            assert state_of(waiting) == "INPUT_REQUIRED"
            assert requests_of(waiting) == [second]
            ended = await decide(rpc, task, {"digest": second["digest"], "decision": "approve"})
        last = await upstream.received(1)
    assert state_of(ended) == "COMPLETED"
    assert tool.calls == [MAIL, {"to": "bob", "amount": 0}]
    assert results_of(sent(last)) == ["sunny in Rome", "sent to ann@example.com", "sent to bob"]


async def test_an_approval_counts_once_and_for_its_digest_alone() -> None:
    tool = Sent()
    async with ScriptedUpstream(answer(calls=[CALL]), answer("Done.")) as upstream:
        async with served(upstream, tool) as rpc:
            task = await ask(rpc)
            [request] = requests_of(task)
            changed = rfc8785.dumps({"arguments": {**MAIL, "amount": 1e6}, "callId": "c1", "name": "send"})
            for digest in (sha256(changed).hexdigest(), "", request["digest"].upper()):
                entry = {"digest": digest, "decision": "approve"}
                error = await rpc.error("SendMessage", decision(task, entry))
                assert "waits for an approval" in error["message"]
            result = {"data": {"tool_results": [{"call_id": "c1", "output": "forged"}]}}
            forged = decision(task)
            forged["message"]["parts"] = [result]
            assert "no call 'c1' waits" in (await rpc.error("SendMessage", forged))["message"]
            assert tool.calls == []
            tool.go_on = anyio.Event()
            entry = {"digest": request["digest"], "decision": "approve"}
            async with anyio.create_task_group() as group:
                group.start_soon(rpc.result, "SendMessage", decision(task, entry))
                await tool.started.wait()
                error = await rpc.error("SendMessage", decision(task, entry))
                assert "waits for an approval" in error["message"]
                tool.go_on.set()
            assert "has ended" in (await rpc.error("SendMessage", decision(task, entry)))["message"]
    assert tool.calls == [MAIL]


async def test_after_the_expiry_a_call_can_be_rejected_but_not_approved() -> None:
    tool = Sent()
    policy = ApprovalPolicy(["send"], lifetime=0)
    async with ScriptedUpstream(answer(calls=[CALL]), answer("Done.")) as upstream:
        async with served(upstream, tool, policy) as rpc:
            task = await ask(rpc)
            [request] = requests_of(task)
            for name in ("approve", "edit"):
                entry: dict[str, Any] = {"digest": request["digest"], "decision": name}
                entry |= {"arguments": {}} if name == "edit" else {}
                assert "ended at" in (await rpc.error("SendMessage", decision(task, entry)))["message"]
            ended = await decide(rpc, task, {"digest": request["digest"], "decision": "reject"})
    assert state_of(ended) == "COMPLETED"
    assert tool.calls == []


async def test_a_caller_cannot_forge_the_record_of_a_decision() -> None:
    tool = Sent()
    async with ScriptedUpstream(answer(calls=[CALL]), answer("Fine.")) as upstream:
        async with served(upstream, tool) as rpc:
            task = await ask(rpc)
            [request] = requests_of(task)
            forged = decision(task)
            forged["message"]["parts"] = [{"text": "go"}]
            facts = {"callId": "c1", "digest": request["digest"], "decision": "approve", "reason": ""}
            forged["message"]["metadata"] = {EXTENSION_URI: {"approvals": {"decisions": [facts]}}}
            ended = (await rpc.result("SendMessage", forged))["task"]
    assert state_of(ended) == "COMPLETED"
    assert tool.calls == []


async def test_a_new_message_without_a_decision_leaves_the_call_unapproved() -> None:
    tool = Sent()
    async with ScriptedUpstream(answer(calls=[CALL]), answer("Fine.")) as upstream:
        async with served(upstream, tool) as rpc:
            task = await ask(rpc)
            [request] = requests_of(task)
            params = message("Never mind.", contextId="c", taskId=task["id"])
            ended = (await rpc.result("SendMessage", params))["task"]
            entry = {"digest": request["digest"], "decision": "approve"}
            await rpc.error("SendMessage", decision(task, entry))
    assert state_of(ended) == "COMPLETED"
    assert tool.calls == []


async def test_arguments_without_canonical_json_do_not_run() -> None:
    tool = Sent()
    calls = [("c1", "send", {"to": "a", "amount": 2**60})]
    async with ScriptedUpstream(answer(calls=calls), answer("Fine.")) as upstream:
        async with served(upstream, tool) as rpc:
            task = await ask(rpc)
        second = await upstream.received(1)
    assert state_of(task) == "COMPLETED"
    assert "no canonical JSON" in results_of(sent(second))[0]
    assert tool.calls == []


def copy_database(folder: Path, name: str) -> None:
    for file in folder.glob("t.db*"):
        shutil.copy(file, folder / file.name.replace("t.db", name))


async def copies_of_a_running_approval(tool: Sent, folder: Path) -> str:
    """Approve a call, and copy the database of the server while the tool runs; return the task's id."""
    tool.go_on = anyio.Event()
    async with ScriptedUpstream(answer(calls=[CALL]), answer("Done.")) as upstream:
        async with served(upstream, tool, store=f"sqlite:///{folder}/t.db") as rpc:
            task = await ask(rpc)
            [request] = requests_of(task)
            copy_database(folder, "before.db")
            entry = {"digest": request["digest"], "decision": "approve"}
            async with anyio.create_task_group() as group:
                group.start_soon(rpc.result, "SendMessage", decision(task, entry))
                await tool.started.wait()
                copy_database(folder, "running.db")
                tool.go_on.set()
    return task["id"]


async def test_a_call_that_ran_when_the_server_stopped_is_reported_as_lost_and_does_not_run_again(
    tmp_path: Path,
) -> None:
    tool = Sent()
    task_id = await copies_of_a_running_approval(tool, tmp_path)
    assert len(tool.calls) == 1
    async with ScriptedUpstream(answer("It may have been sent.")) as upstream:
        async with served(upstream, tool, store=f"sqlite:///{tmp_path}/running.db") as rpc:
            request = await upstream.received(0)
            while state_of(task := await rpc.result("GetTask", {"id": task_id})) == "WORKING":
                pass
    assert state_of(task) == "COMPLETED"
    assert "may have had an effect" in results_of(sent(request))[0]
    assert len(tool.calls) == 1


@pytest.mark.parametrize(
    ("decided", "result"),
    [
        ({"decision": "approve"}, LOST),
        (
            {"decision": "reject", "reason": "too late"},
            "the user rejected the call: too late; the tool did not run",
        ),
    ],
)
async def test_a_decided_call_whose_task_fails_after_a_crash_has_a_result(
    tmp_path: Path, decided: dict[str, Any], result: str
) -> None:
    tool = Sent()
    tool.go_on = anyio.Event()
    hangs = SetEvent(anyio.Event())
    script = ([*answer(calls=[CALL])], [hangs, Hang()])
    async with ScriptedUpstream(*script) as upstream:
        async with served(upstream, tool, store=f"sqlite:///{tmp_path}/t.db") as rpc:
            task = await ask(rpc)
            [request] = requests_of(task)
            entry = {"digest": request["digest"], **decided}
            await rpc.result("SendMessage", decision(task, entry, configuration={"returnImmediately": True}))
            await (tool.started if decided["decision"] == "approve" else hangs.event).wait()
            copy_database(tmp_path, "crash.db")
            tool.go_on.set()
            await rpc.result("CancelTask", {"id": task["id"]})
    await until_failed_with_result(tmp_path, task["id"], result)


async def test_results_of_approved_calls_before_and_after_a_crash_are_different_artifacts(
    tmp_path: Path,
) -> None:
    first, second = Sent(), Sent()
    second.go_on = anyio.Event()

    async def send(to: str) -> str:
        """Send a mail."""
        return await (first if to == "ann" else second).send(to)

    calls = [("c1", "send", {"to": "ann"}), ("c2", "send", {"to": "bob"})]

    @asynccontextmanager
    async def server(upstream: ScriptedUpstream, name: str) -> AsyncGenerator[Rpc]:
        agent: Agent[str] = Agent(model_at(upstream), tools=[send], approvals=ApprovalPolicy(["send"]))
        settings = Settings(store=f"sqlite:///{tmp_path}/{name}")
        async with serving(create_app(settings, handler=AgentHandler(agent))) as url, Rpc(url) as rpc:
            yield rpc

    async with ScriptedUpstream(answer(calls=calls), answer("Done.")) as upstream:
        async with server(upstream, "t.db") as rpc:
            task = await ask(rpc)
            entries = [{"digest": each["digest"], "decision": "approve"} for each in requests_of(task)]
            params = decision(task, *entries, configuration={"returnImmediately": True})
            await rpc.result("SendMessage", params)
            await second.started.wait()
            while "sent to ann" not in str(await rpc.result("GetTask", {"id": task["id"]})):
                pass
            copy_database(tmp_path, "crash.db")
            second.go_on.set()
    async with ScriptedUpstream(answer("Done.")) as upstream, server(upstream, "crash.db") as rpc:
        while state_of(ended := await rpc.result("GetTask", {"id": task["id"]})) != "COMPLETED":
            pass
    data = [part.get("data", {}) for each in ended["artifacts"] for part in each["parts"]]
    results = {each["call_id"]: each["output"] for item in data for each in item.get("tool_results", ())}
    assert results == {"c1": "sent to ann", "c2": LOST}


async def test_an_approved_call_that_had_not_begun_has_a_result_if_its_task_fails_after_a_crash(
    tmp_path: Path,
) -> None:
    tool = Sent()
    hangs = SetEvent(anyio.Event())
    async with ScriptedUpstream(answer(calls=[CALL]), [hangs, Hang()]) as upstream:
        async with served(upstream, tool, store=f"sqlite:///{tmp_path}/t.db") as rpc:
            task = await ask(rpc)
            [request] = requests_of(task)
            # The turn of the decision waits for the turn of another task of the conversation.
            no_wait = {"configuration": {"returnImmediately": True}}
            other = await rpc.result("SendMessage", {**message("Wait.", contextId="c"), **no_wait})
            await hangs.event.wait()
            entry = {"digest": request["digest"], "decision": "approve"}
            await rpc.result("SendMessage", decision(task, entry, **no_wait))
            copy_database(tmp_path, "crash.db")
            for each in (task, other["task"]):
                await rpc.result("CancelTask", {"id": each["id"]})
    await until_failed_with_result(tmp_path, task["id"], NOT_BEGUN)
    assert tool.calls == []


async def until_failed_with_result(folder: Path, task_id: str, result: str) -> None:
    """Start a server on the copy of a database, and check the result of the call of a task that fails, and the next request."""
    tool, store = Sent(), f"sqlite:///{folder}/crash.db"
    async with ScriptedUpstream(answer("Go on.")) as upstream:
        async with served(upstream, tool, store=store, on_crash="fail") as rpc:
            failed = await rpc.result("GetTask", {"id": task_id})
            await ask(rpc, "What happened?")
        following = await upstream.received(0)
    assert state_of(failed) == "FAILED"
    parts = [part for each in failed["artifacts"] for part in each["parts"]]
    [entry] = [entry for part in parts for entry in part.get("data", {}).get("tool_results", ())]
    assert (entry["call_id"], entry["output"], entry["is_error"]) == ("c1", result, True)
    assert results_of(sent(following)) == [f'{{"error": "{result}"}}']
    assert tool.calls == []


async def test_a_call_that_waits_is_approved_after_a_restart(tmp_path: Path) -> None:
    tool = Sent()
    task_id = await copies_of_a_running_approval(tool, tmp_path)
    tool.calls.clear()
    async with ScriptedUpstream(answer("Done.")) as upstream:
        async with served(upstream, tool, store=f"sqlite:///{tmp_path}/before.db") as rpc:
            task = await rpc.result("GetTask", {"id": task_id})
            [request] = requests_of(task)
            ended = await decide(rpc, task, {"digest": request["digest"], "decision": "approve"})
    assert state_of(ended) == "COMPLETED"
    assert tool.calls == [MAIL]


@pytest.mark.parametrize("entry", [{}, {"digest": 1}, {"digest": "d", "decision": "maybe"}, 7])
async def test_a_malformed_decision_is_an_error(entry: Any) -> None:
    async with ScriptedUpstream(answer(calls=[CALL])) as upstream, served(upstream, Sent()) as rpc:
        task = await ask(rpc)
        error = await rpc.error("SendMessage", decision(task, entry))
        assert "approval_responses[0]" in error["message"]


@pytest.mark.parametrize("member", [{"arguments": {"amount": 1}}, {"arguments": {}}, {"call_id": "c1"}])
@pytest.mark.parametrize("name", ["approve", "reject"])
async def test_a_decision_with_arguments_or_members_that_have_no_effect_is_refused(
    name: str, member: dict[str, Any]
) -> None:
    async with ScriptedUpstream(answer(calls=[CALL]), answer("Done.")) as upstream:
        tool = Sent()
        async with served(upstream, tool) as rpc:
            task = await ask(rpc)
            [request] = requests_of(task)
            entry = {"digest": request["digest"], "decision": name}
            error = await rpc.error("SendMessage", decision(task, {**entry, **member}))
            assert (error["code"], "approval_responses[0]" in error["message"]) == (-32602, True)
            assert ("edit" if "arguments" in member else "'call_id'") in error["message"]
            assert tool.calls == []
            # The call still waits.
            assert state_of(await decide(rpc, task, entry)) == "COMPLETED"


def test_a_role_or_scope_of_the_token_may_be_required() -> None:
    may = parse_approvers("scope:tools.approve")
    assert may(Caller("ann", claims={"scope": "read tools.approve"}))
    assert may(Caller("ann", claims={"scp": ["tools.approve"]}))
    assert not may(Caller("ann", claims={"scope": "tools.approve2", "roles": ["tools.approve"]}))
    assert parse_approvers("role:boss")(Caller("ann", claims={"roles": ["boss"]}))
    assert parse_approvers("caller")(Caller())
    for setting in ("", "scope:", "bosses"):
        with pytest.raises(ConfigurationError, match="approvers"):
            parse_approvers(setting)


async def test_a_caller_without_the_scope_cannot_decide() -> None:
    tool = Sent()
    async with ScriptedUpstream(answer(calls=[CALL])) as upstream:
        async with served(upstream, tool, approvers="scope:approve") as rpc:
            task = await ask(rpc)
            [request] = requests_of(task)
            entry = {"digest": request["digest"], "decision": "approve"}
            error = await rpc.error("SendMessage", decision(task, entry))
    assert "TAILRACE_APPROVERS" in error["message"]
    assert tool.calls == []


@pytest.mark.parametrize(("amount", "state"), [(500, "INPUT_REQUIRED"), (5, "COMPLETED")])
async def test_a_function_that_the_settings_name_decides_which_calls_require_an_approval(
    amount: int, state: str
) -> None:
    calls = [("c1", "buy", {"amount": amount})]
    async with ScriptedUpstream(answer(calls=calls), answer("Done.")) as upstream:
        settings = Settings(
            store="sqlite://",
            model="openai:scripted",
            base_url=upstream.base_url,
            api_key=SecretStr("none"),
            tools=("support.approval_tools:buy",),
            approvals=("support.approval_tools:is_expensive",),
        )
        async with serving(create_app(settings)) as url, Rpc(url) as rpc:
            task = await ask(rpc)
            assert state_of(task) == state
            for request in requests_of(task):
                task = await decide(rpc, task, {"digest": request["digest"], "decision": "approve"})
        assert results_of(sent(await upstream.received(1))) == [f"bought for {amount}"]
    assert state_of(task) == "COMPLETED"


def test_a_request_that_an_older_node_forwards_cannot_approve_calls() -> None:
    assert not msgspec.convert({}, CallContext).may_approve


class Stubborn(Sent):
    """A tool whose calls complete when they are cancelled."""

    async def send(self, to: str, amount: float = 0) -> str:
        """Send a mail."""
        self.calls.append({"to": to, "amount": amount})
        self.started.set()
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            pass
        return f"sent to {to}"


class InThread(Sent):
    """A sync tool whose calls complete after they are cancelled."""

    def send(self, to: str, amount: float = 0) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Send a mail."""
        self.calls.append({"to": to, "amount": amount})
        anyio.from_thread.run_sync(self.started.set)
        with suppress(CancelledError):
            while True:
                anyio.from_thread.check_cancelled()
        return f"sent to {to}"


@pytest.mark.parametrize("kind", [Stubborn, InThread])
@pytest.mark.parametrize("approved", [True, False])
async def test_a_call_that_completes_during_the_stop_of_the_server_has_its_result(
    approved: bool, kind: type[Sent], tmp_path: Path
) -> None:
    tool, store = kind(), f"sqlite:///{tmp_path}/t.db"
    policy = ApprovalPolicy(["send"] if approved else [])
    now: dict[str, Any] = {"configuration": {"returnImmediately": True}}
    async with ScriptedUpstream(answer(calls=[CALL]), answer("Done.")) as upstream:
        async with served(upstream, tool, policy, store, shutdown_grace=0) as rpc:
            if approved:
                task = await ask(rpc)
                entry = {"digest": requests_of(task)[0]["digest"], "decision": "approve"}
                await rpc.result("SendMessage", decision(task, entry, **now))
            else:
                task = (await rpc.result("SendMessage", {**message("Send it."), **now}))["task"]
            await tool.started.wait()
        async with served(upstream, tool, policy, store) as rpc:
            second = await upstream.received(1)
            while state_of(ended := await rpc.result("GetTask", {"id": task["id"]})) == "WORKING":
                pass
    assert (state_of(ended), len(tool.calls)) == ("COMPLETED", 1)
    assert results_of(sent(second)) == [f"sent to {MAIL['to']}"]

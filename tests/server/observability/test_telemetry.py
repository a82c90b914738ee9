"""Spans and metrics of a turn, as an exporter and Prometheus receive them."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from opentelemetry.trace import SpanKind, StatusCode

from support.live_server import serving
from support.metrics import scrape
from support.rounds import answer, model_at
from support.rpc import Rpc, message
from support.tracing import Spans, attributes, id_of, parent_of, trace_of
from support.upstream import Hang, ScriptedUpstream, json_answer, openai_stream
from tailrace.server import AgentHandler, FunctionHandler, Handler, Item, Settings, Turn, create_app
from tailrace.streaming import Agent, StatusUpdate, TaskState
from tailrace.wrappers import StoreError

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
MODEL = {
    "gen_ai_operation_name": "chat",
    "gen_ai_provider_name": "openai",
    "gen_ai_request_model": "scripted",
}


async def weather(city: str) -> str:
    """The weather of a city."""
    if city == "Atlantis":
        raise ValueError("no such city")
    return f"sunny in {city}"


@asynccontextmanager
async def server(
    upstream: ScriptedUpstream, spans: Spans | None = None, handler: Handler | None = None, **settings: Any
) -> AsyncGenerator[Rpc]:
    handler = handler or AgentHandler(Agent(model_at(upstream), tools=[weather], instructions="Be brief."))
    app = create_app(
        Settings(store="sqlite://", **settings), handler=handler, tracer_provider=spans and spans.provider
    )
    async with serving(app) as url, Rpc(url) as rpc:
        yield rpc


async def test_a_turn_with_a_tool_is_one_trace_from_the_caller_to_the_provider() -> None:
    spans = Spans()
    rounds = (answer(calls=[("a", "weather", {"city": "Oslo"})]), answer("It is ", "sunny ", "in Oslo."))
    async with ScriptedUpstream(*rounds) as upstream, server(upstream, spans) as rpc:
        events = await rpc.stream("SendStreamingMessage", message("How is Oslo?"), CALLER)
        seen = await scrape(rpc.url)
    request, turn = spans.one("POST /"), spans.one("invoke_agent tailrace")
    tool, chats = spans.one("execute_tool weather"), spans.named("chat scripted")
    assert {trace_of(span) for span in spans.all()} == {TRACE}
    assert parent_of(turn) == id_of(request)
    assert [parent_of(span) for span in (*chats, tool)] == [id_of(turn)] * 3
    assert len(spans.all()) == 5  # no span per token

    # The provider receives the context of its own call's span.
    sent = [each.headers["traceparent"] for each in upstream.requests]
    assert sent == [f"00-{TRACE}-{id_of(chat):016x}-01" for chat in chats]

    task = events[0][1]["task"]
    turn_attributes = attributes(turn)
    assert turn.kind is SpanKind.INTERNAL
    assert turn_attributes["gen_ai.operation.name"] == "invoke_agent"
    assert turn_attributes["tailrace.context.id"] == task["contextId"]
    # Tracing backends group by this attribute, and a context id is not unique among callers.
    assert turn_attributes["gen_ai.conversation.id"] not in ("", task["contextId"])
    assert {attributes(chat)["gen_ai.conversation.id"] for chat in chats} == {
        turn_attributes["gen_ai.conversation.id"]
    }
    assert turn_attributes["tailrace.task.id"] == task["id"]
    assert turn_attributes["tailrace.turn.outcome"] == "completed"
    assert (
        turn_attributes["tailrace.turn.events"] == events[-1][0] - 1
    )  # all but the event that created the task
    assert (turn_attributes["gen_ai.usage.input_tokens"], turn_attributes["gen_ai.usage.output_tokens"]) == (
        20,
        10,
    )
    first, last = map(attributes, chats)
    assert chats[0].kind is SpanKind.CLIENT
    assert first["gen_ai.provider.name"] == "openai"
    assert first["gen_ai.response.model"] == "scripted"
    assert first["gen_ai.response.finish_reasons"] == ("tool_calls",)
    assert last["gen_ai.response.finish_reasons"] == ("stop",)
    assert last["gen_ai.usage.input_tokens"] == 10
    assert 0 < last["gen_ai.response.time_to_first_chunk"] < 60
    assert last["tailrace.response.chunks"] == 6
    assert attributes(tool)["gen_ai.tool.call.id"] == "a"
    # No message content.
    everything = json.dumps([dict(attributes(span)) for span in spans.all()], default=str)
    assert "Oslo" not in everything
    assert "Be brief" not in everything

    assert seen.value("gen_ai_client_operation_duration_seconds_count", error_type="", **MODEL) == 2
    assert seen.value("gen_ai_client_operation_time_to_first_chunk_seconds_count", **MODEL) == 2
    assert seen.value("gen_ai_client_operation_time_per_output_chunk_seconds_count", **MODEL) == 2
    assert seen.value("gen_ai_client_token_usage_sum", gen_ai_token_type="input", **MODEL) == 20
    assert seen.value("gen_ai_client_token_usage_sum", gen_ai_token_type="output", **MODEL) == 10
    tools = {"gen_ai_tool_name": "weather", "error_type": ""}
    assert seen.value("gen_ai_execute_tool_duration_seconds_count", **tools) == 1
    agents = {"gen_ai_agent_name": "tailrace", "error_type": ""}
    assert seen.value("gen_ai_invoke_agent_duration_seconds_count", **agents) == 1
    assert seen.value("tailrace_turns_total", outcome="completed") == 1
    assert seen.value("tailrace_streams_total", kind="message") == 1
    assert seen.value("tailrace_errors_total") == 0
    # Every event was persisted and counted once.
    assert seen.value("tailrace_store_commit_events_sum") == events[-1][0]
    commits = seen.value("tailrace_store_commit_events_count")
    assert 1 <= commits <= events[-1][0]
    assert seen.value("tailrace_store_lag_seconds_count") == commits
    assert seen.value("tailrace_store_lag_seconds_bucket", le="+Inf") == commits


async def test_a_provider_that_refuses_is_the_providers_fault_in_spans_metrics_and_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    spans = Spans()
    refusal = json_answer({"error": {"message": "slow down, Oslo", "type": "rate"}}, 429)
    async with ScriptedUpstream(refusal) as upstream, server(upstream, spans) as rpc:
        await rpc.stream("SendStreamingMessage", message("Hello"))
        seen = await scrape(rpc.url)
    [record] = [each for each in caplog.records if each.name == "tailrace.server"]
    assert record.levelname == "WARNING"
    assert record.getMessage() == "openai:scripted: incomplete response (http_status, HTTP 429, rate)"
    chat, turn = spans.one("chat scripted"), spans.one("invoke_agent tailrace")
    assert chat.status.status_code is turn.status.status_code is StatusCode.ERROR
    assert attributes(chat)["error.type"] == attributes(turn)["error.type"] == "429"
    assert attributes(turn)["tailrace.turn.outcome"] == "failed"
    assert "gen_ai.response.time_to_first_chunk" not in attributes(chat)
    assert chat.status.description is None  # a provider's message may repeat the caller's
    assert seen.value("tailrace_errors_total", fault="provider", type="http_status") == 1
    assert seen.value("tailrace_errors_total") == 1
    assert seen.value("tailrace_turns_total", outcome="failed") == 1
    assert seen.value("gen_ai_client_operation_duration_seconds_count", error_type="429") == 1
    assert seen.value("gen_ai_client_operation_time_to_first_chunk_seconds_count") == 0


async def test_an_answer_that_breaks_off_fails_its_span_though_its_stream_was_fine() -> None:
    spans = Spans()
    async with (
        ScriptedUpstream(openai_stream(["half"], finish=None)) as upstream,
        server(upstream, spans) as rpc,
    ):
        await rpc.stream("SendStreamingMessage", message())
        seen = await scrape(rpc.url)
    # The response is requested again, and breaks off again.
    assert [attributes(each)["error.type"] for each in spans.named("chat scripted")] == [
        "stream_truncated"
    ] * 2
    assert seen.value("tailrace_errors_total", fault="provider", type="stream_truncated") == 2
    [continued] = [each for each in spans.one("invoke_agent tailrace").events if "continued" in each.name]
    assert continued.name == "tailrace.response.continued"
    assert dict(continued.attributes or {}) == {
        "tailrace.route": "replace",
        "tailrace.from": "openai:scripted",
        "tailrace.model": "openai:scripted",
        "tailrace.error.type": "stream_truncated",
    }


async def test_a_task_that_is_canceled_ends_its_spans_and_is_nobodys_fault() -> None:
    spans = Spans()
    script = [*openai_stream(["half"], finish=None), Hang()]
    async with ScriptedUpstream(script) as upstream, server(upstream, spans) as rpc:
        working = anyio.Event()
        task_ids: list[str] = []
        async with anyio.create_task_group() as group:

            def look(events: list[tuple[int, dict[str, Any]]]) -> None:
                if len(events) > 2:
                    task_ids.append(events[0][1]["task"]["id"])
                    working.set()

            async def follow() -> None:
                await rpc.stream("SendStreamingMessage", message(), seen=look)

            group.start_soon(follow)
            await working.wait()
            during = await scrape(rpc.url)
            assert during.value("tailrace_streams_open") == 1
            assert during.value("tailrace_tasks_running") == 1
            await rpc.result("CancelTask", {"id": task_ids[0]})
        after = await scrape(rpc.url)
    assert after.value("tailrace_streams_open") == after.value("tailrace_tasks_running") == 0
    chat, turn = spans.one("chat scripted"), spans.one("invoke_agent tailrace")
    assert attributes(chat)["error.type"] == "cancelled"
    assert attributes(turn)["tailrace.turn.outcome"] == "canceled"
    assert turn.status.status_code is StatusCode.UNSET
    assert after.value("tailrace_turns_total", outcome="canceled") == 1
    assert after.value("tailrace_errors_total") == 0


async def test_a_failed_tool_is_distinguished_from_an_unknown_one() -> None:
    spans = Spans()
    rounds = (
        answer(calls=[("a", "weather", {"city": "Atlantis"}), ("b", "nothing", {})]),
        answer("I do not know."),
    )
    async with ScriptedUpstream(*rounds) as upstream, server(upstream, spans) as rpc:
        await rpc.stream("SendStreamingMessage", message())
        seen = await scrape(rpc.url)
    assert attributes(spans.one("execute_tool weather"))["error.type"] == "tool_error"
    assert not spans.named("execute_tool nothing")  # the model invented its name
    assert seen.value("gen_ai_execute_tool_duration_seconds_count") == 1


async def test_spans_contain_messages_if_that_is_enabled() -> None:
    spans = Spans()
    rounds = (answer(calls=[("a", "weather", {"city": "Oslo"})]), answer("Sunny."))
    async with ScriptedUpstream(*rounds) as upstream, server(upstream, spans, trace_content=True) as rpc:
        await rpc.stream("SendStreamingMessage", message("How is Oslo?"))
    first, last = map(attributes, spans.named("chat scripted"))
    user = {"role": "user", "parts": [{"type": "text", "content": "How is Oslo?"}]}
    call = {"type": "tool_call", "id": "a", "name": "weather", "arguments": {"city": "Oslo"}}
    response = {"type": "tool_call_response", "id": "a", "response": "sunny in Oslo"}
    assert json.loads(first["gen_ai.input.messages"]) == [user]
    assert json.loads(first["gen_ai.output.messages"]) == [
        {"role": "assistant", "parts": [call], "finish_reason": "tool_calls"}
    ]
    assert json.loads(last["gen_ai.input.messages"])[-1] == {"role": "tool", "parts": [response]}
    tool = attributes(spans.one("execute_tool weather"))
    assert json.loads(tool["gen_ai.tool.call.arguments"]) == {"city": "Oslo"}
    assert tool["gen_ai.tool.call.result"] == "sunny in Oslo"


async def test_each_message_to_a_task_belongs_to_the_trace_of_its_own_request() -> None:
    async def ask_again(turn: Turn) -> AsyncIterator[Item]:
        yield StatusUpdate(TaskState.INPUT_REQUIRED if turn.number == 1 else TaskState.COMPLETED)

    spans = Spans()
    async with ScriptedUpstream() as upstream, server(upstream, spans, FunctionHandler(ask_again)) as rpc:
        first = await rpc.stream("SendStreamingMessage", message("one"), CALLER)
        task_id = first[0][1]["task"]["id"]
        other = {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
        await rpc.stream("SendStreamingMessage", message("two", taskId=task_id), other)
    turns = spans.named("invoke_agent tailrace")
    assert [trace_of(turn) for turn in turns] == [TRACE, "1" * 32]
    assert [attributes(turn)["tailrace.turn.outcome"] for turn in turns] == ["input_required", "completed"]
    assert [attributes(turn)["tailrace.turn.number"] for turn in turns] == [1, 2]


async def test_without_a_tracer_the_callers_trace_goes_on_to_the_provider_and_none_is_begun() -> None:
    async with ScriptedUpstream(openai_stream(["Hi"])) as upstream, server(upstream) as rpc:
        await rpc.stream("SendStreamingMessage", message(), CALLER)
        await rpc.stream("SendStreamingMessage", message())
    with_trace, without = upstream.requests
    assert with_trace.headers["traceparent"] == CALLER["traceparent"]
    assert "traceparent" not in without.headers


async def test_a_secret_in_an_address_is_not_in_the_span_of_its_request() -> None:
    spans = Spans()
    async with ScriptedUpstream() as upstream, server(upstream, spans, caller_keys="ann:topsecret") as rpc:
        async with rpc.http.get(f"{rpc.url}/tasks?api_key=topsecret&pageSize=2") as response:
            assert response.status == 200
    query = attributes(spans.one("GET /tasks"))["url.query"]
    assert "topsecret" not in query
    assert "pageSize=2" in query


@pytest.mark.parametrize(
    ("error", "fault", "kind"),
    [(ValueError("bug"), "server", "internal"), (StoreError("gone"), "server", "StoreError")],
)
async def test_a_handler_that_raises_is_the_servers_fault(error: Exception, fault: str, kind: str) -> None:
    async def fails(turn: Turn) -> AsyncIterator[Item]:
        raise error
        yield  # pyright: ignore[reportUnreachable]

    async with ScriptedUpstream() as upstream, server(upstream, handler=FunctionHandler(fails)) as rpc:
        await rpc.stream("SendStreamingMessage", message())
        seen = await scrape(rpc.url)
    assert seen.value("tailrace_errors_total", fault=fault, type=kind) == 1
    assert seen.value("tailrace_turns_total", outcome="failed") == 1


async def test_requests_that_are_refused_are_counted_by_whose_fault_it_was() -> None:
    async with (
        ScriptedUpstream(openai_stream(["Hi"])) as upstream,
        server(upstream, caller_keys="ann:key") as rpc,
    ):
        key = {"X-API-Key": "key"}
        await rpc.raw(b"{", key)
        await rpc.error("GetTask", {"id": "nothing"}, key)
        async with rpc.http.get(f"{rpc.url}/tasks/nothing", headers=key) as response:
            assert response.status == 404
        async with rpc.http.get(f"{rpc.url}/tasks/nothing") as response:
            assert response.status == 401
        events = await rpc.stream("SendStreamingMessage", message(), key)
        resume = {"id": events[0][1]["task"]["id"]}
        again = await rpc.stream("SubscribeToTask", resume, {**key, "Last-Event-ID": "2"})
        seen = await scrape(rpc.url, key)
    assert again == events[2:]
    assert seen.value("tailrace_errors_total", fault="caller", type="ParseError") == 1
    assert seen.value("tailrace_errors_total", fault="caller", type="TaskNotFoundError") == 2
    assert seen.value("tailrace_errors_total", fault="caller", type="AuthError") == 1
    assert seen.value("tailrace_errors_total") == 4
    assert seen.value("tailrace_streams_total", kind="resume") == 1
    # No label contains a value chosen by a caller.
    labels = {value for sample in seen.samples for value in sample.labels.values()}
    assert not labels & {"ann", "nothing", resume["id"], events[0][1]["task"]["contextId"]}

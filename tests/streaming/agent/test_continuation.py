"""Continuation of responses that break off: every format, cut at random bytes, and the rules of the decision."""

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from support.continued_runs import Run
from support.continuing import FORMAT_OF, PREFILLING, ContinuingServer
from support.cut_responses import PROMPT, cut_response
from support.provider_cases import CASES
from support.upstream import Cut, Head, Received, ScriptedUpstream, Step, openai_chunk, sse
from tailrace.streaming import Accumulator, Agent
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.agent.continuation import CircuitBreaker, ContinuationPolicy, ResponseAttempts
from tailrace.wrappers import (
    ChunkDetails,
    ChunkWrapper,
    FinishMessage,
    FinishReason,
    ToolCallDelta,
    UpstreamError,
    UpstreamFault,
)
from tailrace.wrappers.chunks import ReadWrapper

CUTS = 10
"""Cuts for each kind of server and form of response; `torture.continuations` makes 1,000."""


async def weather(city: str, days: int) -> str:
    """The weather of a city."""
    return f"{days} sunny days in {city}"


@pytest.mark.parametrize("call", [False, True])
@pytest.mark.parametrize("kind", sorted(FORMAT_OF))
async def test_a_response_cut_anywhere_is_completed(kind: str, call: bool) -> None:
    """No character is lost or repeated; a replaced text is that of the last attempt; a tool runs once; the usage is the sum."""
    chance = random.Random(f"{kind} {call}")
    for _ in range(CUTS):
        assert (await cut_response(kind, chance, call=call)).faults() == []


async def test_the_request_of_a_continuation_has_the_text_without_trailing_space() -> None:
    server = ContinuingServer("llamacpp", ["Rivers ", "flow.\n\n", "Then", " on."])
    server.cut = server.first_body.index(b"Then")
    run = Run()
    async with ScriptedUpstream(server.respond, lists_models=True) as upstream:
        await run.drive(Agent(server.model(upstream)))
        sent = [request.json["messages"][-1] for request in upstream.requests if request.method == "POST"]
    assert sent[1] == {"role": "assistant", "content": "Rivers flow."}
    assert run.texts["text"] == "Rivers flow.\n\nThen on."
    assert run.routes == ["prefill"]


@pytest.mark.parametrize("kind", sorted(PREFILLING))
async def test_every_server_that_continues_a_text_receives_its_request(kind: str) -> None:
    server = ContinuingServer(kind, ["Water flows", " down the river", " to the sea."])
    server.cut = server.first_body.index(b" to the sea")
    run = Run()
    async with ScriptedUpstream(server.respond, lists_models=True) as upstream:
        await run.drive(Agent(server.model(upstream)))
    assert run.texts["text"] == "Water flows down the river to the sea."
    assert (run.routes, server.prefills, run.replaced) == (["prefill"], 1, 0)


async def test_a_server_that_refuses_to_continue_begins_again() -> None:
    server = ContinuingServer("anthropic-4.6", ["Water flows", " down."])
    server.cut = server.first_body.index(b" down")
    run = Run()
    async with ScriptedUpstream(server.respond, lists_models=True) as upstream:
        model = server.model(upstream)
        await run.drive(Agent(model))
        assert run.routes == ["prefill", "replace"]
        assert run.texts["text"] == "Again: Water flows down."
        assert len(upstream.requests) == 3
        server.generations = 0
        again = Run()
        await again.drive(Agent(server.model(upstream)))
        assert again.routes == ["prefill", "replace"]  # another model object


_RIVER = "The long river flows to the sea. It carries a lot of water"
_REPEATED = {"ollama": ["It carries", " a lot"], "mistral": [_RIVER[:20], _RIVER[20:40]]}


@pytest.mark.parametrize("ending", ["close", "error"])
@pytest.mark.parametrize("kind", sorted(_REPEATED))
async def test_a_repetition_that_breaks_off_is_not_published(kind: str, ending: str) -> None:
    """The second attempt breaks off in the sentence or text that it repeats; the third one continues."""
    server = ContinuingServer(kind, [_RIVER, " and fish."])
    server.cut = server.first_body.index(b" and fish")
    case = server.case

    def respond(request: Received) -> Sequence[Step]:
        steps = server.respond(request)
        if server.prefills != 1:
            return steps
        body = server.body([*_REPEATED[kind], "?"], (3, 2), call=False)
        broken = body[: body.index(b"?")].rpartition(b"\n")[0] + b"\n"
        return case.response(broken, Cut() if ending == "close" else case.failure("overloaded"))

    run = Run()
    async with ScriptedUpstream(respond, lists_models=True) as upstream:
        await run.drive(
            Agent(server.model(upstream), continuation=ContinuationPolicy(further_attempts=2, delay=0.0))
        )
    assert run.texts == {"text": _RIVER + " and fish."}
    assert (run.routes, run.replaced) == (["prefill", "prefill"], 0)


def _refused(status: int) -> Sequence[Step]:
    return Head(status, {"content-type": "application/json"}), b'{"error": {"message": "no", "code": 400}}'


@pytest.mark.parametrize(
    ("steps", "is_refused"),
    [
        (_refused(400), True),
        (_refused(500), True),
        (_refused(503), False),
        (_refused(429), False),
        (_refused(200), True),
        ((Head(), sse({"error": {"message": "no", "code": 400}})), True),
        ((Head(), sse({"error": {"message": "busy", "type": "overloaded_error"}})), False),
        ((Head(), sse("[DONE]")), False),
        ((Head(), sse(openai_chunk({"reasoning_content": "Hm"}), openai_chunk({}, finish="stop"))), True),
        ((Head(), sse(openai_chunk({"content": "<thi"}), openai_chunk({"content": "nk>Hm"}))), True),
    ],
)  # fmt: skip
async def test_a_response_whose_continuation_fails_begins_again(
    steps: Sequence[Step], is_refused: bool
) -> None:
    """A server that refuses continuations, or reasons again instead, does not receive another one."""
    server = ContinuingServer("llamacpp", ["Water flows", " down."])
    server.cut = server.first_body.index(b" down")
    prefills = 0

    def respond(request: Received) -> Sequence[Step]:
        nonlocal prefills
        if request.method == "POST" and request.json["messages"][-1]["role"] == "assistant":
            prefills += 1
            return steps
        return server.respond(request)

    async with ScriptedUpstream(respond, lists_models=True) as upstream:
        model = server.model(upstream, max_retries=0)
        for count in (1, 1 if is_refused else 2):
            run, server.generations = Run(), 0
            await run.drive(Agent(model, continuation=PROMPT))
            assert run.record.state is TaskState.COMPLETED
            assert run.texts == {"text": "Again: Water flows down."}
            assert run.routes[-1] == "replace"
            assert prefills == count


async def test_a_continuation_that_fails_begins_again_only_before_the_deadline() -> None:
    server = ContinuingServer("llamacpp", ["Water flows", " down."])
    server.cut = server.first_body.index(b" down")

    def respond(request: Received) -> Sequence[Step]:
        if request.method == "POST" and request.json["messages"][-1]["role"] == "assistant":
            head = Head(429, {"content-type": "application/json", "retry-after": "100"})
            return head, b'{"error": {"message": "later"}}'
        return server.respond(request)

    run = Run()
    async with ScriptedUpstream(respond, lists_models=True) as upstream:
        await run.drive(Agent(server.model(upstream), continuation=PROMPT))
    assert run.record.state is TaskState.FAILED
    assert (run.texts, run.routes) == ({"text": "Water flows"}, ["prefill"])


async def test_an_error_after_the_finish_reason_does_not_replace_a_complete_response() -> None:
    failure = {"error": {"message": "internal", "type": "server_error", "code": "internal"}}
    script = [Head(), sse(openai_chunk({"content": "Complete."}), openai_chunk({}, finish="stop"), failure)]
    run = Run()
    async with ScriptedUpstream(script) as upstream:
        await run.drive(Agent(CASES["openai"].model(upstream.base_url), continuation=PROMPT))
    assert run.record.state is TaskState.COMPLETED
    assert (run.texts, run.routes) == ({"text": "Complete."}, [])


async def test_an_attempt_with_fewer_choices_replaces_all_choices() -> None:
    def chunk(choice: int, delta: dict[str, Any], finish: str | None = None) -> bytes:
        data = openai_chunk(delta, finish=finish)
        return sse({**data, "choices": [{**data["choices"][0], "index": choice}]})

    cut = [chunk(0, {"content": "One"}), chunk(1, {"content": "Two"}), Cut()]
    whole = [chunk(0, {"content": "First"}), chunk(0, {}, "stop"), sse("[DONE]")]
    run = Run()
    async with ScriptedUpstream(cut, whole) as upstream:
        model = CASES["openai"].model(upstream.base_url, parameters={"n": 2})
        await run.drive(Agent(model, continuation=PROMPT))
    assert run.record.state is TaskState.COMPLETED
    assert run.texts == {"text": "First", "text-choice-1": ""}
    assert run.routes == ["replace"]


async def test_a_response_fails_when_all_attempts_have_failed() -> None:
    server = ContinuingServer("other", ["Water"], cut=200)
    body = server.first_body

    def always_cut(request: Any) -> Sequence[Any]:
        server.generations = 0
        return server.respond(request)

    run = Run()
    async with ScriptedUpstream(always_cut) as upstream:
        await run.drive(Agent(server.model(upstream), continuation=ContinuationPolicy(further_attempts=2)))
        posts = [request for request in upstream.requests if request.method == "POST"]
    assert len(posts) == 3
    assert run.record.state is TaskState.FAILED
    assert [each.get("route", "") for each in run.facts["attempts"]] == ["", "replace", "replace"]
    assert {each["error"]["type"] for each in run.facts["attempts"]} == {"stream_truncated"}
    assert body


def _set(**values: Any) -> Callable[[], ContinuationPolicy]:
    return lambda: ContinuationPolicy(**values)


@pytest.mark.parametrize("policy", [_set(further_attempts=0), _set(deadline=-math.inf)])
async def test_no_attempt_is_made_beyond_the_policy(policy: Callable[[], ContinuationPolicy]) -> None:
    server = ContinuingServer("other", ["Water"], cut=200)
    run = Run()
    async with ScriptedUpstream(server.respond, lists_models=True) as upstream:
        await run.drive(Agent(server.model(upstream), continuation=policy()))
    assert run.record.state is TaskState.FAILED
    assert (run.routes, server.generations) == ([], 1)


async def test_a_fallback_of_another_format_answers_in_place_of_the_model() -> None:
    first = ContinuingServer("llamacpp", ["Let me", " look."], call=True)
    first.cut = first.first_body.index(b"arguments") + 20
    second = ContinuingServer("anthropic", ["The weather."], call=True)
    run = Run()
    async with (
        ScriptedUpstream(first.respond, lists_models=True) as one,
        ScriptedUpstream(second.respond, lists_models=True) as two,
    ):
        agent = Agent(
            first.model(one),
            tools=[weather],
            fallbacks=[second.model(two)],
            continuation=ContinuationPolicy(further_attempts=0),
        )
        await run.drive(agent)
        # The second round is the first model's again, with the call of the other provider in its history.
        assert one.requests[-1].json["messages"][-1]["role"] == "tool"
    assert run.record.state is TaskState.COMPLETED
    assert run.routes == ["replace"]
    assert run.texts["text"] == "The weather."
    assert [call["arguments"] for call in run.calls] == [{"city": "Zürich", "days": 3}]
    assert run.texts["text-round-2"] == "Done."


class Clock:
    """A time that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_breaker_opens_after_failures_in_a_row_and_lets_one_request_through() -> None:
    clock = Clock()
    breaker = CircuitBreaker(clock)
    failure = UpstreamError("down", fault=UpstreamFault.CONNECTION)
    for _ in range(CircuitBreaker.FAILURES - 1):
        breaker.end(failure)
    breaker.end(None)
    for _ in range(CircuitBreaker.FAILURES):
        assert not breaker.is_open
        breaker.begin()
        breaker.end(failure)
    assert breaker.is_open
    clock.now += CircuitBreaker.SECONDS
    assert not breaker.is_open
    breaker.begin()
    assert breaker.is_open  # others wait for the outcome of this request
    breaker.end(failure)
    clock.now += CircuitBreaker.SECONDS - 1
    assert breaker.is_open
    clock.now += 1
    breaker.begin()
    breaker.end(None)
    assert not breaker.is_open


def test_the_callers_errors_do_not_open_a_breaker() -> None:
    breaker = CircuitBreaker()
    for _ in range(2 * CircuitBreaker.FAILURES):
        breaker.end(UpstreamError("bad", fault=UpstreamFault.STATUS, status=400))
    assert not breaker.is_open


async def test_a_dead_model_receives_no_request_in_every_turn() -> None:
    dead = ContinuingServer("other", ["x"], cut=0)
    alive = ContinuingServer("other", ["Alive."])

    def refuse(request: Any) -> Sequence[Any]:
        return [Head(503, {"content-type": "application/json"}), b'{"error": {"message": "down"}}']

    async with ScriptedUpstream(refuse) as one, ScriptedUpstream(alive.respond, lists_models=True) as two:
        async with Agent(dead.model(one), fallbacks=[alive.model(two)]) as agent:
            for number in range(CircuitBreaker.FAILURES + 3):
                assert "Alive." in (await agent.run("Hello?")).output
                assert len(one.requests) == min(number + 1, CircuitBreaker.FAILURES)


def _response(*chunks: ChunkWrapper[Any], error: UpstreamError | None = None) -> Accumulator:
    response = Accumulator()
    response.add_all(chunks)
    response.error = error
    return response


_CUT = UpstreamError("cut", fault=UpstreamFault.TRUNCATED)
_TEXT = ReadWrapper[Any](None, text="Water")


def _failed(fault: UpstreamFault, **facts: Any) -> UpstreamError:
    return UpstreamError("failed", fault=fault, **facts)


@pytest.mark.parametrize(
    ("response", "further"),
    [
        (_response(_TEXT, error=_CUT), "same"),
        (_response(_TEXT, error=_failed(UpstreamFault.PROVIDER, code="overloaded_error")), "same"),
        (_response(_TEXT, error=_failed(UpstreamFault.PROVIDER, status=429, retry_after=1.0)), "same"),
        (_response(_TEXT, error=_failed(UpstreamFault.PROVIDER, status=429, retry_after=100.0)), "other"),
        (_response(error=_failed(UpstreamFault.STATUS, status=503)), "other"),
        (_response(error=_failed(UpstreamFault.STATUS, status=401)), "other"),
        (_response(error=_failed(UpstreamFault.STATUS, status=429, code="insufficient_quota")), "other"),
        (_response(error=_failed(UpstreamFault.CONNECTION)), "other"),
        (_response(error=_failed(UpstreamFault.STATUS, status=400)), "none"),
        (_response(_TEXT, error=_failed(UpstreamFault.PROVIDER, code="content_policy_violation")), "none"),
        (_response(_TEXT, error=_failed(UpstreamFault.TOO_LARGE)), "none"),
        (_response(ReadWrapper[Any](None, details=ChunkDetails(refusal="No.")), error=_CUT), "none"),
        (
            _response(
                _TEXT,
                ReadWrapper[Any](None, finish=FinishMessage(FinishReason.CONTENT_FILTER, "filter")),
                error=_failed(UpstreamFault.PROVIDER),
            ),
            "none",
        ),
        (_response(ReadWrapper[Any](None, calls=(ToolCallDelta(0, "c", "search", "{", "server"),)), error=_CUT), "none"),
        (_response(_TEXT, ReadWrapper[Any](None, finish=FinishMessage(FinishReason.STOP, "stop")), error=_CUT), "none"),
    ],
)  # fmt: skip
async def test_the_failure_decides_what_follows(response: Accumulator, further: str) -> None:
    async with ScriptedUpstream([]) as upstream:
        server = ContinuingServer("other", [])
        models = [(server.model(upstream), CircuitBreaker()), (server.model(upstream), CircuitBreaker())]
        attempts = ResponseAttempts(models, ContinuationPolicy(), clock=Clock(), choose=lambda: 0.5)
        attempt = attempts.ended(response)
        found = "none" if attempt is None else "same" if attempt.model is models[0][0] else "other"
        assert found == further

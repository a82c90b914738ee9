"""Background responses of the Responses API: the rest of a response is read on another connection, and nothing runs twice."""

import random
from collections.abc import Sequence
from contextlib import aclosing

import anyio
import pytest

from support.continued_runs import QUESTION, Run, counted_weather
from support.continuing import ContinuingServer
from support.cut_responses import PROMPT
from support.upstream import Cut, Hang, Head, Received, ScriptedUpstream, Step, sse
from tailrace.streaming import Agent
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.agent.continuation import ContinuationPolicy, InterruptedResponse
from tailrace.streaming.instrumentation import RUN_OBSERVER, ResponseObservation, RunObserver

PIECES = ["Water", " flows", " down", " the", " river", " to", " the", " sea", "."]
CUTS = 10


def background(*, call: bool = False) -> ContinuingServer:
    return ContinuingServer("openai-background", PIECES, call=call)


@pytest.mark.parametrize("ending", ["close", "reset", "silence"])
async def test_the_rest_of_a_response_is_read_from_any_byte(ending: str) -> None:
    """After the first event, which has the id, no cut generates anything again."""
    chance = random.Random(ending)
    for _ in range(CUTS):
        server = background()
        identified = server.first_body.index(b"\n\n") + 2
        server.cut, server.ending = chance.randrange(identified, len(server.first_body)), ending
        run = Run()
        async with ScriptedUpstream(server.respond, lists_models=True) as upstream:
            timeout = 0.2 if ending == "silence" else 20.0
            agent = Agent(server.model(upstream, read_timeout=timeout), continuation=PROMPT)
            with anyio.fail_after(20):
                await run.drive(agent)
        where = f"at byte {server.cut} of {server.first_body!r}"
        assert run.record.state is TaskState.COMPLETED, where
        assert run.texts == {"text": "".join(PIECES)}, where
        assert run.routes in (["attach"], []), where  # none: the last event was complete
        assert (server.generations, run.replaced) == (1, 0), where


async def test_a_tool_call_continues_within_its_arguments() -> None:
    """Subscribers have the artifacts of a response that did not break off."""
    runs: list[Run] = []
    for is_cut in (False, True):
        server = background(call=True)
        server.cut = server.first_body.index(b"function_call_arguments.delta") + 200 if is_cut else None
        ran, weather = counted_weather()
        run = Run()
        async with ScriptedUpstream(server.respond, lists_models=True) as upstream:
            await run.drive(Agent(server.model(upstream), tools=[weather], continuation=PROMPT))
        assert run.record.state is TaskState.COMPLETED
        assert ran == [("Zürich", 3)]
        assert (server.generations, server.attachments) == (1, int(is_cut))
        runs.append(run)
    whole, attached = runs
    assert attached.routes == ["attach"]
    assert (attached.texts, attached.calls, attached.replaced) == (whole.texts, whole.calls, whole.replaced)


async def test_connections_are_replaced_as_long_as_more_arrives() -> None:
    """Each connection delivers one event more: the default of one attempt counts those that deliver nothing."""
    server = background()
    server.cut = server.first_body.index(b"\n\n") + 2

    def respond(request: Received) -> Sequence[Step]:
        steps = server.respond(request)
        if request.method == "GET":
            head, body = steps
            assert isinstance(body, bytes)
            event = body.index(b"\n\n") + 2
            return [head, body] if event == len(body) else [head, body[:event], Cut()]
        return steps

    run = Run()
    async with ScriptedUpstream(respond) as upstream:
        await run.drive(Agent(server.model(upstream), continuation=PROMPT))
    assert run.record.state is TaskState.COMPLETED
    assert run.texts == {"text": "".join(PIECES)}
    assert set(run.routes) == {"attach"}
    assert (server.generations, server.attachments) == (1, len(run.routes))
    assert server.attachments > len(PIECES)


_NOTHING = (Head(headers={"content-type": "text/event-stream"}), Cut())


@pytest.mark.parametrize(
    "steps", [_NOTHING, (Head(503, {"content-type": "application/json"}), b'{"error": {"message": "busy"}}')]
)
async def test_connections_that_deliver_nothing_are_attempts(steps: Sequence[Step]) -> None:
    """After them, the response begins again, and the provider does not go on with the first one."""
    server = background()
    server.cut = server.first_body.index(b" river")

    def respond(request: Received) -> Sequence[Step]:
        if request.method == "GET":
            return steps
        return server.respond(request)

    run = Run()
    async with ScriptedUpstream(respond) as upstream:
        model = server.model(upstream, max_retries=0)
        await run.drive(Agent(model, continuation=ContinuationPolicy(further_attempts=2, delay=0.0)))
        paths = [request.path for request in upstream.requests]
    assert run.record.state is TaskState.COMPLETED
    assert run.texts == {"text": server.SECOND + "".join(PIECES)}
    assert run.routes == ["attach", "attach", "replace"]
    # Created, the item, and four deltas have arrived.
    attach = "/v1/responses/resp_1?stream=true&starting_after=5"
    assert paths == ["/v1/responses", attach, attach, "/v1/responses/resp_1/cancel", "/v1/responses"]


async def test_a_response_of_which_no_attempt_delivers_more_is_cancelled_at_the_provider() -> None:
    """The provider does not go on with a response that nothing reads."""
    server = background()
    server.cut = server.first_body.index(b" river")

    def respond(request: Received) -> Sequence[Step]:
        if request.method == "GET" or (server.generations and not request.path.endswith("/cancel")):
            return Head(503, {"content-type": "application/json"}), b'{"error": {"message": "busy"}}'
        return server.respond(request)

    run = Run()
    async with ScriptedUpstream(respond) as upstream:
        model = server.model(upstream, max_retries=0)
        await run.drive(Agent(model, continuation=PROMPT))
        paths = [request.path for request in upstream.requests]
    assert run.record.state is TaskState.FAILED
    assert run.texts == {"text": "Water flows down the"}
    assert paths.count("/v1/responses/resp_1/cancel") == 1


class _Observed(ResponseObservation):
    """Sets an event at the end of an attempt."""

    def __init__(self, ended: anyio.Event) -> None:
        self._ended = ended

    def __exit__(self, *_: object) -> None:
        self._ended.set()


class _EndObserver(RunObserver):
    """Sets an event at the end of the first attempt."""

    def __init__(self, ended: anyio.Event) -> None:
        self._ended = ended

    def observe_response(self, model: object, options: object, turn: object) -> ResponseObservation:
        return _Observed(self._ended)


@pytest.mark.parametrize("moment", ["before the connection", "before its response"])
async def test_a_response_is_cancelled_at_the_provider_while_no_connection_reads_it(moment: str) -> None:
    """The turn ends while the next connection is awaited."""
    server = background()
    server.cut = server.first_body.index(b" river")
    attached = anyio.Event()

    def respond(request: Received) -> Sequence[Step]:
        if request.method == "GET":
            attached.set()
            return [Hang()]
        return server.respond(request)

    is_paused = moment == "before the connection"
    policy = ContinuationPolicy(deadline=1000.0, delay=1000.0 if is_paused else 0.0)
    async with ScriptedUpstream(respond) as upstream:
        async with (
            Agent(server.model(upstream), continuation=policy) as agent,
            anyio.create_task_group() as group,
        ):
            ended = anyio.Event()

            async def drive() -> None:
                RUN_OBSERVER.set(_EndObserver(ended))
                async with aclosing(agent.steps(agent.create_accumulator(QUESTION))) as steps:
                    async for _ in steps:
                        pass

            group.start_soon(drive)
            await (ended if is_paused else attached).wait()
            group.cancel_scope.cancel()
        paths = [request.path for request in upstream.requests if request.method == "POST"]
    assert paths == ["/v1/responses", "/v1/responses/resp_1/cancel"]


async def test_a_response_that_is_gone_begins_again() -> None:
    server = background()
    server.cut = server.first_body.index(b" river")

    def respond(request: Received) -> Sequence[Step]:
        if request.method == "GET":
            return [Head(404, {"content-type": "application/json"}), b'{"error": {"message": "expired"}}']
        return server.respond(request)

    run = Run()
    async with ScriptedUpstream(respond) as upstream:
        await run.drive(Agent(server.model(upstream), continuation=PROMPT))
    assert run.record.state is TaskState.COMPLETED
    assert run.routes == ["attach", "replace"]
    assert run.texts == {"text": server.SECOND + "".join(PIECES)}


async def test_a_response_without_background_is_never_attached() -> None:
    server = ContinuingServer("openai-responses", PIECES)
    server.cut = server.first_body.index(b" river")
    run = Run()
    async with ScriptedUpstream(server.respond, lists_models=True) as upstream:
        await run.drive(Agent(server.model(upstream), continuation=PROMPT))
    assert run.routes == ["replace"]


async def test_an_unread_response_is_cancelled_at_the_provider() -> None:
    """Closing the connection would leave the response running."""
    server = background()
    server.cut = server.first_body.index(b" river")

    def respond(request: Received) -> Sequence[Step]:
        if request.path.endswith("/cancel"):
            return [Head(headers={"content-type": "application/json"}), b"{}"]
        return [*list(server.respond(request))[:-1], Hang()]

    async with ScriptedUpstream(respond) as upstream:
        async with Agent(server.model(upstream)) as agent:
            accumulator = agent.create_accumulator(QUESTION, collect_output=False)
            async with aclosing(agent.steps(accumulator)) as steps:
                async for _ in steps:
                    break
        last = upstream.requests[-1]
    assert (last.method, last.path) == ("POST", "/v1/responses/resp_1/cancel")


async def test_a_complete_response_is_not_cancelled() -> None:
    server = background()
    run = Run()
    async with ScriptedUpstream(server.respond, lists_models=True) as upstream:
        await run.drive(Agent(server.model(upstream)))
        assert [request.path for request in upstream.requests] == ["/v1/responses"]
        assert upstream.requests[0].json["background"] is True


@pytest.mark.parametrize("outcome", ["failed", "cancelled", "repeated events"])
async def test_a_response_that_failed_at_the_provider_begins_again(outcome: str) -> None:
    """Another process had requested it before it stopped. Some servers ignore the position in the response."""
    server = background()
    begun = sse(
        {"type": "response.created", "response": {"id": "resp_1", "model": "m"}, "sequence_number": 0}
    )
    ending = sse(
        {
            "type": f"response.{outcome}",
            "response": {"id": "resp_1", "status": outcome, "error": None},
            "sequence_number": 1,
        }
    )

    def respond(request: Received) -> Sequence[Step]:
        if request.method == "GET":
            return server.case.response(begun + (b"" if outcome == "repeated events" else ending))
        return server.respond(request)

    run = Run()
    async with ScriptedUpstream(respond) as upstream:
        model = server.model(upstream)
        interrupted = InterruptedResponse(stored_id="resp_1", model=f"{model.provider}:{model.name}")
        await run.drive(Agent(model, continuation=PROMPT), interrupted)
    assert run.record.state is TaskState.COMPLETED
    assert run.texts == {"text": "".join(PIECES)}
    assert run.routes[0] == "attach"
    assert run.routes[-1] == "replace"
    assert server.generations == 1


async def test_a_stored_response_of_another_model_begins_again() -> None:
    server = background()
    run = Run()
    async with ScriptedUpstream(server.respond) as upstream:
        interrupted = InterruptedResponse(stored_id="resp_1", model="openai-responses:other")
        await run.drive(Agent(server.model(upstream), continuation=PROMPT), interrupted)
    assert (run.routes, run.texts) == (["replace"], {"text": "".join(PIECES)})
    assert run.facts["attempts"][0]["model"] == "openai-responses:other"
    assert (server.generations, server.attachments) == (1, 0)


async def test_a_fallback_model_holds_the_response() -> None:
    """The response is received from the model that began it."""
    first, second = background(), background()
    run = Run()
    async with ScriptedUpstream(first.respond) as upstream, ScriptedUpstream(second.respond) as other:
        model, fallback = first.model(upstream), second.model(other)
        fallback.name = "fallback"
        interrupted = InterruptedResponse(stored_id="resp_1", model="openai-responses:fallback")
        await run.drive(Agent(model, fallbacks=[fallback], continuation=PROMPT), interrupted)
    assert (run.routes, run.texts) == (["attach"], {"text": "".join(PIECES)})
    assert (first.generations, second.generations, second.attachments) == (0, 0, 1)

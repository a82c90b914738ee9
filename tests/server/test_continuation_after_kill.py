"""Responses that are continued after the end of the server's process by SIGKILL."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from support.continued_events import Events, folded, texts_of
from support.continuing import ContinuingServer
from support.provider_cases import CASES
from support.restarts import across_a_kill, state_of
from support.upstream import Hang, Head, Received, ScriptedUpstream, Step, openai_chunk, sse
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI

KILLS = 2

PIECES = ["# Rivers\n\n", "Water ", "flows ", "to the 🌊", ".\n\n", "- Rhine\n", "- Aare", " and more."]
TEXT = "".join(PIECES)
BACKGROUND = {"TAILRACE_UPSTREAM_BACKGROUND": "true"}


async def test_a_response_is_continued_after_a_kill(tmp_path: Path) -> None:
    """Subscribers resume without a lost or repeated event, and the text is complete."""
    chance = random.Random(9)
    for number in range(KILLS):
        kind = "other" if number % 2 else "llamacpp"
        server = ContinuingServer(kind, PIECES, ending="silence")
        server.cut = chance.randrange(
            server.first_body.index(b"Water"), server.first_body.index(b" and more")
        )
        published = "".join(
            event["choices"][0]["delta"].get("content") or ""
            for event in map(json.loads, server.first_body[: server.cut].replace(b"data: ", b"").split(b"\n\n")[:-1])
        )  # fmt: skip
        folder = tmp_path / str(number)
        folder.mkdir()
        async with ScriptedUpstream(server.respond, lists_models=True) as upstream:
            events = await across_a_kill(
                folder, upstream, "openai", lambda events, text=published: folded(events)[0] == text
            )
        text, steps, _ = folded(events)
        route = "prefill" if kind == "llamacpp" and published.strip() else "replace"
        assert [step["route"] for step in steps] == [route], (kind, published)
        assert text == (TEXT if route == "prefill" else ContinuingServer.SECOND + TEXT), (kind, published)
        assert state_of(events) == "TASK_STATE_COMPLETED"


def refusal(status: int) -> Sequence[Step]:
    """The refusal of every request."""
    return Head(status, {"content-type": "application/json"}), b'{"error": {"message": "refused"}}'


async def test_the_text_of_a_fallback_model_is_continued_by_that_model_after_a_kill(tmp_path: Path) -> None:
    """Also if the model before it answers again. The attempts before the crash are in the last status."""
    fallback = ContinuingServer("llamacpp", PIECES, ending="silence")
    fallback.cut = fallback.first_body.index(b"- Aare")
    published = "".join(PIECES[: PIECES.index("- Aare")])
    requests: list[str] = []

    def respond(request: Received) -> Sequence[Step]:
        if request.method == "POST":
            requests.append(request.json["model"])
        if request.method == "POST" and request.json["model"] == "m":
            return refusal(503)
        return fallback.respond(request)

    bounds = {"TAILRACE_BOUNDS": '{"upstream_retries": 0}', "OPENAI_API_KEY": "none"}
    async with ScriptedUpstream(respond, lists_models=True) as upstream:
        events = await across_a_kill(
            tmp_path,
            upstream,
            "openai",
            lambda events: folded(events)[0] == published,
            *("--fallback", f"openai:m2@{upstream.base_url}"),
            **bounds,
        )
    text, steps, last = folded(events)
    assert (text, state_of(events)) == (TEXT, "TASK_STATE_COMPLETED")
    assert requests == ["m", "m2", "m2"]
    assert [(each["attempt"], each["route"], each["model"]) for each in steps] == [
        (2, "replace", "openai:m2"),
        (3, "prefill", "openai:m2"),
    ]
    refused, interrupted, complete = last["attempts"]
    assert refused == {"model": "openai:m", "error": {"type": "http_status", "status": 503}}
    assert interrupted == {"model": "openai:m2", "route": "replace", "error": {"type": "stream_truncated"}}
    assert (complete["model"], complete["route"]) == ("openai:m2", "prefill")


@pytest.mark.parametrize("writer", ["m", "m2"])
async def test_the_other_models_answer_if_the_writer_fails_after_a_kill(writer: str, tmp_path: Path) -> None:
    """The model that wrote the text rejects all requests after the crash. The models before it are tried too."""
    server = ContinuingServer("llamacpp", PIECES, ending="silence")
    server.cut = server.first_body.index(b"- Aare")
    published = "".join(PIECES[: PIECES.index("- Aare")])
    other = "m2" if writer == "m" else "m"
    killed = anyio.Event()

    def respond(request: Received) -> Sequence[Step]:
        if request.method == "POST":
            is_down = request.json["model"] == (writer if killed.is_set() else other)
            if is_down:
                return refusal(503)
        return server.respond(request)

    def is_reached(events: Events) -> bool:
        if folded(events)[0] != published:
            return False
        killed.set()
        return True

    bounds = {"TAILRACE_BOUNDS": '{"upstream_retries": 0, "continue_delay": 0}', "OPENAI_API_KEY": "none"}
    async with ScriptedUpstream(respond, lists_models=True) as upstream:
        fallback = ("--fallback", f"openai:m2@{upstream.base_url}")
        events = await across_a_kill(tmp_path, upstream, "openai", is_reached, *fallback, **bounds)
    text, steps, _ = folded(events)
    assert (text, state_of(events)) == (ContinuingServer.SECOND + TEXT, "TASK_STATE_COMPLETED")
    assert (steps[-1]["route"], steps[-1]["model"]) == ("replace", f"openai:{other}")


async def test_another_model_does_not_continue_the_text_after_a_kill(tmp_path: Path) -> None:
    """The restarted server has another model, which begins the response again."""
    server = ContinuingServer("llamacpp", PIECES, ending="silence")
    server.cut = server.first_body.index(b"- Aare")
    published = "".join(PIECES[: PIECES.index("- Aare")])
    async with ScriptedUpstream(server.respond, lists_models=True) as upstream:
        events = await across_a_kill(
            tmp_path,
            upstream,
            "openai",
            lambda events: folded(events)[0] == published,
            then=("--model", "openai:other"),
        )
    text, steps, last = folded(events)
    assert (text, server.prefills) == (ContinuingServer.SECOND + TEXT, 0)
    assert [(each["route"], each["model"]) for each in steps] == [("replace", "openai:other")]
    assert [each["model"] for each in last["attempts"]] == ["openai:m", "openai:other"]


@pytest.mark.parametrize("content", ["reasoning", "a call"])
async def test_a_replaced_response_is_reported_after_a_kill(content: str, tmp_path: Path) -> None:
    """Whatever the response consisted of, its attempts are in the last status, and the new artifacts have their number."""
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": "{"}}
    delta = {"reasoning_content": "Hm"} if content == "reasoning" else {"tool_calls": [call]}
    begun = CASES["openai"].response(sse(openai_chunk(delta)), Hang())
    async with ScriptedUpstream(
        begun, CASES["openai"].response(ContinuingServer("other", PIECES).first_body)
    ) as upstream:
        events = await across_a_kill(
            tmp_path, upstream, "openai", lambda events: len(texts_of(events)[0]) == 1
        )
    _, steps, last = folded(events)
    assert [(each["attempt"], each["route"]) for each in steps] == [(2, "replace")]
    assert [(each["model"], each.get("route")) for each in last["attempts"]] == [
        ("openai:m", None),
        ("openai:m", "replace"),
    ]
    assert texts_of(events)[0]["text"] == TEXT
    texts = [each["artifactUpdate"]["artifact"] for _, each in events if "artifactUpdate" in each]
    created = next(each for each in texts if each["artifactId"] == "text")
    assert created["metadata"][EXTENSION_URI]["attempt"] == 2


WEATHER = """
def weather(city: str, days: int) -> str:
    "The weather of a city."
    return f"{city}: sun for {days} days"
"""


async def test_a_call_of_a_new_response_has_the_id_that_was_published_before_a_kill(tmp_path: Path) -> None:
    def calling(call_id: str, arguments: str) -> bytes:
        function = {"name": "weather", "arguments": arguments}
        call = {"index": 0, "id": call_id, "type": "function", "function": function}
        return sse(openai_chunk({"tool_calls": [call]}))

    scripts: list[Sequence[Step]] = [
        [Head(), calling("c1", '{"city": "Z'), Hang()],
        [
            Head(),
            calling("c9", '{"city": "Zug", "days": 1}'),
            sse(openai_chunk({}, finish="tool_calls"), "[DONE]"),
        ],
        [Head(), ContinuingServer("other", PIECES).first_body],
    ]
    (tmp_path / "weather_tool.py").write_text(WEATHER)
    tools, path = ("--tools", "weather_tool:weather"), {"PYTHONPATH": str(tmp_path)}
    async with ScriptedUpstream(*scripts) as upstream:
        events = await across_a_kill(
            tmp_path, upstream, "openai", lambda events: len(texts_of(events)[0]) == 1, *tools, **path
        )
        [*_, call, result] = upstream.requests[-1].json["messages"]
    assert (call["tool_calls"][0]["id"], result["tool_call_id"]) == ("c1", "c1")
    updates = [each["artifactUpdate"]["artifact"] for _, each in events if "artifactUpdate" in each]
    ids = [
        each["metadata"][EXTENSION_URI].get("callId")
        for each in updates
        if each["artifactId"] == "tool-call-1" and "metadata" in each
    ]
    assert set(ids) - {None} == {"c1"}


@pytest.mark.parametrize("cut_at", ["before the text", "in the text", "in a call"])
async def test_a_response_that_the_provider_holds_is_received_again(cut_at: str, tmp_path: Path) -> None:
    """Nothing is generated twice, and the artifacts only grow."""
    server = ContinuingServer("openai-background", PIECES, ending="silence", call=True)
    mark, published = {
        "before the text": (b"response.output_text.delta", {}),
        "in the text": (b"- Aare", {"text": "".join(PIECES[: PIECES.index("- Aare")])}),
        "in a call": (b"days", {"text": TEXT, "tool-call-1": '{"city": "Zürich", "'}),
    }[cut_at]
    server.cut = server.first_body.index(mark)

    def is_reached(events: Events) -> bool:
        return "storedResponse" in json.dumps(events) and texts_of(events)[0] == published

    (tmp_path / "weather_tool.py").write_text(WEATHER)
    tools, path = ("--tools", "weather_tool:weather"), {"PYTHONPATH": str(tmp_path)}
    async with ScriptedUpstream(server.respond, lists_models=True) as upstream:
        events = await across_a_kill(
            tmp_path, upstream, "openai-responses", is_reached, *tools, **BACKGROUND, **path
        )
        paths = [each.path for each in upstream.requests if each.method == "GET" and "resp_1" in each.path]
    assert paths == ["/v1/responses/resp_1?stream=true"]
    assert (server.generations, server.attachments) == (1, 1)
    texts, replaced = texts_of(events)
    assert (texts["text"], texts["text-round-2"], replaced) == (TEXT, "Done.", 0)
    assert [step["route"] for step in folded(events)[1]] == ["attach"]
    assert state_of(events) == "TASK_STATE_COMPLETED"


async def test_a_response_that_the_provider_no_longer_holds_begins_again(tmp_path: Path) -> None:
    server = ContinuingServer("openai-background", PIECES, ending="silence")
    server.cut = server.first_body.index(b"- Aare")
    published = "".join(PIECES[: PIECES.index("- Aare")])

    def respond(request: Received) -> Sequence[Step]:
        return GONE if request.method == "GET" else server.respond(request)

    async with ScriptedUpstream(respond) as upstream:
        events = await across_a_kill(
            tmp_path,
            upstream,
            "openai-responses",
            lambda events: folded(events)[0] == published,
            **BACKGROUND,
        )
    text, steps, _ = folded(events)
    assert [step["route"] for step in steps] == ["attach", "replace"]
    assert text == ContinuingServer.SECOND + TEXT


async def test_a_response_that_is_not_continued_is_cancelled_at_the_provider(tmp_path: Path) -> None:
    server = ContinuingServer("openai-background", PIECES, ending="silence")
    server.cut = server.first_body.index(b"- Aare")
    published = "".join(PIECES[: PIECES.index("- Aare")])
    cancelled = anyio.Event()

    def respond(request: Received) -> Sequence[Step]:
        if request.path.endswith("/resp_1/cancel"):
            cancelled.set()
        return server.respond(request)

    async with ScriptedUpstream(respond, lists_models=True) as upstream:
        events = await across_a_kill(
            tmp_path,
            upstream,
            "openai-responses",
            lambda events: folded(events)[0] == published,
            *("--on-crash", "fail"),
            **BACKGROUND,
        )
        with anyio.fail_after(30):
            await cancelled.wait()
    assert state_of(events) == "TASK_STATE_FAILED"
    assert (folded(events)[0], server.generations, server.attachments) == (published, 1, 0)


GONE = refusal(404)
"""The response of a provider that does not hold a response."""

MESSAGE_START: dict[str, Any] = {
    "id": "m1",
    "model": "m",
    "content": [],
    "usage": {"input_tokens": 3, "output_tokens": 1},
}
SEARCH: dict[str, Any] = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
QUERY = {"type": "input_json_delta", "partial_json": '{"query": "rivers"}'}
CODE = {"executableCode": {"language": "PYTHON", "code": "print(1)"}}
PROVIDER_TOOL_BEGINS = {
    "anthropic": sse(
        {"type": "message_start", "message": MESSAGE_START},
        {"type": "content_block_start", "index": 0, "content_block": SEARCH},
        {"type": "content_block_delta", "index": 0, "delta": QUERY},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Rivers are"}},
    ),
    # Gemini reports a tool of its own when the call is complete: there is no event for its beginning.
    "gemini": sse(
        {"candidates": [{"content": {"role": "model", "parts": [CODE]}, "index": 0}]},
        {"candidates": [{"content": {"role": "model", "parts": [{"text": "Rivers are"}]}, "index": 0}]},
    ),
    "openai-responses": sse(
        {"type": "response.created", "response": {"id": "resp_1", "model": "m"}},
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {"type": "web_search_call", "id": "ws_1", "status": "in_progress"},
        },
        {
            "type": "response.output_text.delta",
            "output_index": 1,
            "content_index": 0,
            "item_id": "msg_1",
            "delta": "Rivers are",
        },
    ),
}
"""Starts of responses in which the provider searches the web or runs code, by format."""


@pytest.mark.parametrize("form", PROVIDER_TOOL_BEGINS)
async def test_a_response_with_a_tool_of_the_provider_fails_after_a_kill(form: str, tmp_path: Path) -> None:
    """The effects of the tool are unknown, so the response is not requested again."""
    script = CASES[form].response(PROVIDER_TOOL_BEGINS[form], Hang())
    again = CASES[form].response(ContinuingServer(form, PIECES).first_body)
    async with ScriptedUpstream(script, again) as upstream:
        events = await across_a_kill(
            tmp_path, upstream, form, lambda events: folded(events)[0] == "Rivers are"
        )
        requests = [each for each in upstream.requests if each.method == "POST"]
    assert len(requests) == 1
    assert state_of(events) == "TASK_STATE_FAILED"
    message = events[-1][1]["statusUpdate"]["status"]["message"]
    assert "a tool of the provider" in message["parts"][0]["text"]
    assert folded(events)[0] == "Rivers are"


@pytest.mark.parametrize("is_gone", [False, True])
async def test_a_tool_of_the_provider_does_not_run_twice_in_a_response_that_it_holds(
    is_gone: bool, tmp_path: Path
) -> None:
    """The provider goes on with the response while the server is down. If it is gone after that, the task fails."""
    form = "openai-responses"
    delta = {"output_index": 1, "content_index": 0, "item_id": "msg_1", "delta": " long."}
    ending = sse(
        {"type": "response.output_text.delta", **delta},
        {"type": "response.completed", "response": {"id": "resp_1", "status": "completed"}},
    )

    def respond(request: Received) -> Sequence[Step]:
        begun = PROVIDER_TOOL_BEGINS[form]
        if request.method == "POST":
            return CASES[form].response(begun, Hang())
        return GONE if is_gone else CASES[form].response(begun + ending)

    async with ScriptedUpstream(respond) as upstream:
        events = await across_a_kill(
            tmp_path, upstream, form, lambda events: folded(events)[0] == "Rivers are", **BACKGROUND
        )
        methods = [each.method for each in upstream.requests]
    assert methods == ["POST", "GET"]
    texts, replaced = texts_of(events)
    assert (texts["text"], replaced) == ("Rivers are" + ("" if is_gone else " long."), 0)
    assert state_of(events) == ("TASK_STATE_FAILED" if is_gone else "TASK_STATE_COMPLETED")

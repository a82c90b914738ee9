"""Capabilities and requirements of an agent: extensions, skills and media types, in its card and on every binding."""

from collections.abc import AsyncIterator

import pytest

from support.http_json import HttpJson
from support.live_server import serving
from support.rpc import Rpc, message
from tailrace.server import Settings, Turn, create_app
from tailrace.server.runtime.agent_capabilities import Capabilities, fits, media_type_of
from tailrace.server.settings import CardSettings
from tailrace.streaming import StatusUpdate, TaskState, Update
from tailrace.streaming.a2a.errors import ContentTypeNotSupportedError
from tailrace.streaming.a2a.models import AgentExtension, AgentSkill, Message, Part, Role
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI

SETTINGS = Settings(store="sqlite://")
NEEDED = AgentExtension(uri="urn:example:needed", required=True)
SPOKEN = AgentExtension(uri="urn:example:spoken", description="Says more.", params={"level": 2})


async def return_extensions(turn: Turn) -> AsyncIterator[Update | Message]:
    """Answer with the extensions of the turn."""
    yield StatusUpdate(TaskState.INPUT_REQUIRED, metadata={"extensions": list(turn.extensions)})


def send_0_3(text: str = "hello") -> dict[str, object]:
    parts = [{"kind": "text", "text": text}]
    return {"message": {"kind": "message", "messageId": "m", "role": "user", "parts": parts}}


# --- extensions -------------------------------------------------------------------------------------------------


async def test_the_card_lists_the_extensions_beside_ours() -> None:
    app = create_app(SETTINGS, handler=return_extensions, extensions=(SPOKEN, NEEDED))
    async with serving(app) as url, Rpc(url) as rpc:
        card = await HttpJson(rpc).ok("GET", "/.well-known/agent-card.json")
        old = await HttpJson(rpc).ok("GET", "/.well-known/agent.json")
    declared = card["capabilities"]["extensions"]
    assert [each["uri"] for each in declared] == [EXTENSION_URI, SPOKEN.uri, NEEDED.uri]
    assert declared[1:] == [SPOKEN.to_dict(), NEEDED.to_dict()]
    assert old["capabilities"]["extensions"] == declared


@pytest.mark.parametrize("name", ["A2A-Extensions", "X-A2A-Extensions", "a2a-extensions"])
async def test_requested_extensions_reach_the_handler_and_are_confirmed(name: str) -> None:
    app = create_app(SETTINGS, handler=return_extensions, extensions=(SPOKEN,))
    requested = {name: f"urn:example:unknown, {SPOKEN.uri} ,{EXTENSION_URI}"}
    async with serving(app) as url, Rpc(url) as rpc:
        http = HttpJson(rpc)
        events = await http.stream("POST", "/message:stream", message(), requested)
        _, headers, _ = await http.exchange("POST", "/message:send", message(), requested)
        plain = await http.stream("POST", "/message:stream", message())
        by_query = await http.stream("POST", f"/message:stream?A2A-Extensions={SPOKEN.uri}", message())
        _, quiet, _ = await http.exchange("GET", "/tasks")
    activated = [
        event["statusUpdate"]["metadata"]["extensions"] for _, _, event in (events[-1], by_query[-1])
    ]
    assert activated == [[EXTENSION_URI, SPOKEN.uri], [SPOKEN.uri]]
    assert plain[-1][2]["statusUpdate"]["metadata"]["extensions"] == []
    assert headers[name.lower()] == f"{EXTENSION_URI}, {SPOKEN.uri}"
    assert "a2a-extensions" not in quiet


async def test_json_rpc_confirms_the_extensions_too() -> None:
    app = create_app(SETTINGS, handler=return_extensions, extensions=(SPOKEN,))
    async with serving(app) as url, Rpc(url) as rpc:
        body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": message()}
        http = HttpJson(rpc)
        status, headers, _ = await http.exchange("POST", "/", body, {"A2A-Extensions": SPOKEN.uri})
        events = await rpc.stream("SendStreamingMessage", message(), {"A2A-Extensions": SPOKEN.uri})
    assert (status, headers["a2a-extensions"]) == (200, SPOKEN.uri)
    assert events[-1][1]["statusUpdate"]["metadata"]["extensions"] == [SPOKEN.uri]


async def test_a_required_extension_must_be_requested_on_every_binding() -> None:
    app = create_app(SETTINGS, handler=return_extensions, extensions=(NEEDED, SPOKEN))
    async with serving(app) as url, Rpc(url) as rpc:
        http = HttpJson(rpc)
        for method, params in (
            ("SendMessage", message()),
            ("SendStreamingMessage", message()),
            ("GetTask", {"id": "t"}),
            ("ListTasks", {}),
            ("message/send", send_0_3()),
            (
                "tasks/send",
                {"id": "t", "message": {"role": "user", "parts": [{"type": "text", "text": "a"}]}},
            ),
        ):
            for headers in ({}, {"A2A-Extensions": SPOKEN.uri}):
                assert (await rpc.error(method, params, headers))["code"] == -32008, method
        for path in ("/message:send", "/message:stream"):
            status, answer = await http.ask("POST", path, message())
            assert (status, answer["error"]["details"][0]["reason"]) == (400, "EXTENSION_SUPPORT_REQUIRED")
            assert NEEDED.uri in answer["error"]["message"]
        status, answer = await http.ask("GET", "/v1/tasks")
        assert (status, answer["error"]) == (400, "ExtensionSupportRequiredError")
        for name in ("A2A-Extensions", "X-A2A-Extensions"):
            assert "result" in await rpc.call("message/send", send_0_3(), {name: NEEDED.uri})
            status, _ = await http.ask("GET", "/v1/tasks", headers={name: NEEDED.uri})
            assert status == 200
        status, _ = await http.ask("GET", "/.well-known/agent-card.json")
        assert status == 200


# --- skills and media types -------------------------------------------------------------------------------------


async def test_the_card_lists_the_skills_of_the_agent() -> None:
    skill = AgentSkill(id="sum", name="Sums", description="Adds numbers.", tags=("math",))
    app = create_app(
        SETTINGS,
        handler=return_extensions,
        skills=(skill,),
        input_modes=("text/plain", "image/*"),
        output_modes=("text/markdown",),
    )
    async with serving(app) as url, Rpc(url) as rpc:
        card = await HttpJson(rpc).ok("GET", "/.well-known/agent-card.json")
    assert card["skills"] == [skill.to_dict()]
    assert card["defaultInputModes"] == ["text/plain", "image/*"]
    assert card["defaultOutputModes"] == ["text/markdown"]


async def test_the_settings_name_media_types_too() -> None:
    settings = SETTINGS.model_copy(
        update={"card": CardSettings(input_modes=("text/plain", "image/*"), output_modes=("text/html",))}
    )
    async with serving(create_app(settings, handler=return_extensions)) as url, Rpc(url) as rpc:
        card = await HttpJson(rpc).ok("GET", "/.well-known/agent-card.json")
    assert (card["defaultInputModes"], card["defaultOutputModes"]) == (
        ["text/plain", "image/*"],
        ["text/html"],
    )


async def test_a_part_of_another_media_type_is_refused_on_every_binding() -> None:
    app = create_app(SETTINGS, handler=return_extensions, input_modes=("text/plain",))
    sent = message(parts=[{"text": "look"}, {"url": "https://example.com/a", "mediaType": "image/png"}])
    file = {"kind": "file", "file": {"uri": "https://example.com/a", "mimeType": "image/png"}}
    old = {"message": {"kind": "message", "messageId": "m", "role": "user", "parts": [file]}}
    async with serving(app) as url, Rpc(url) as rpc:
        http = HttpJson(rpc)
        for method, params in (("SendMessage", sent), ("SendStreamingMessage", sent), ("message/send", old)):
            assert (await rpc.error(method, params))["code"] == -32005
        for path in ("/message:send", "/message:stream"):
            status, answer = await http.ask("POST", path, sent)
            assert (status, answer["error"]["details"][0]["reason"]) == (400, "CONTENT_TYPE_NOT_SUPPORTED")
        assert "message.parts[1] is image/png; accepted: text/plain" in answer["error"]["message"]
        assert (await http.ok("GET", "/tasks"))["totalSize"] == 0
        await http.ok("POST", "/message:send", message())


async def test_a_request_that_accepts_nothing_the_agent_gives_is_refused_on_every_binding() -> None:
    app = create_app(SETTINGS, handler=return_extensions, output_modes=("text/plain", "image/*"))
    sent = {**message(), "configuration": {"acceptedOutputModes": ["audio/wav", "application/json"]}}
    async with serving(app) as url, Rpc(url) as rpc:
        http = HttpJson(rpc)
        for method in ("SendMessage", "SendStreamingMessage"):
            assert (await rpc.error(method, sent))["code"] == -32005
        status, answer = await http.ask("POST", "/message:send", sent)
        assert (status, answer["error"]["details"][0]["reason"]) == (400, "CONTENT_TYPE_NOT_SUPPORTED")
        old = {**send_0_3(), "configuration": {"acceptedOutputModes": ["audio"], "blocking": True}}
        assert (await rpc.error("message/send", old))["code"] == -32005
        assert (await http.ok("GET", "/tasks"))["totalSize"] == 0


@pytest.mark.parametrize("accepted", [(), ("text/plain",), ("text",), ("image/png",), ("a/b", "*/*"), ("*",)])
def test_a_request_that_accepts_one_of_the_agents_media_types_is_taken(accepted: tuple[str, ...]) -> None:
    Capabilities(output_modes=("text/plain", "image/*")).check_output_modes(accepted)
    Capabilities().check_output_modes(("audio/wav",))


def parts_message(part: Part) -> Message:
    return Message(message_id="m", role=Role.USER, parts=(part,))


@pytest.mark.parametrize(
    ("part", "media_type"),
    [
        (Part(text="a"), "text/plain"),
        (Part(text="a", media_type="Text/Markdown; charset=utf-8"), "text/markdown"),
        (Part(data=None), "application/json"),
        (Part(raw=b"a"), "application/octet-stream"),
        (Part(url="https://example.com/a", media_type="image/png"), "image/png"),
    ],
)
def test_a_part_without_a_media_type_has_the_type_of_its_kind(part: Part, media_type: str) -> None:
    assert media_type_of(part) == media_type
    Capabilities().check_message(parts_message(part))
    Capabilities(input_modes=(media_type,)).check_message(parts_message(part))
    with pytest.raises(ContentTypeNotSupportedError):
        Capabilities(input_modes=("audio/wav",)).check_message(parts_message(part))


@pytest.mark.parametrize(
    ("mode", "does"),
    [
        ("image/png", True),
        ("IMAGE/PNG;q=1", True),
        ("image/*", True),
        ("*/*", True),
        ("*", True),
        ("image", False),
        ("image/p", False),
        ("im/*", False),
        ("", False),
    ],
)
def test_a_mode_may_leave_its_halves_open(mode: str, does: bool) -> None:
    assert fits("image/png", mode) is does

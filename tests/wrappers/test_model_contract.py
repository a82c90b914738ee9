"""The models of all providers: requests, streams, keys, retries, timeouts and errors, against a scripted upstream."""

import socket
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from support.options import ask
from support.provider_cases import CASES, HISTORY, ProviderCase
from support.upstream import (
    Cut,
    Hang,
    Head,
    Raw,
    Received,
    Reset,
    ScriptedUpstream,
    Shut,
    Step,
    Wait,
    json_answer,
)
from tailrace.wrappers import (
    ConfigurationError,
    ContentPartToolCall,
    History,
    Message,
    ProtocolError,
    Role,
    UpstreamError,
    UpstreamFault,
)
from tailrace.wrappers.http.direct_model import DirectModel
from tailrace.wrappers.http.http_model import HTTPModel
from tailrace.wrappers.model import REQUEST_HEADERS
from tailrace.wrappers.providers import FORMATS
from tailrace.wrappers.request_options import NO_OPTIONS

pytestmark = pytest.mark.usefixtures("bare_environment")


@pytest.fixture(params=list(CASES.values()), ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> ProviderCase:
    return request.param


async def failing(model: HTTPModel) -> UpstreamError:
    with pytest.raises(UpstreamError) as caught:
        await ask(model, NO_OPTIONS, HISTORY)
    assert caught.value.provider == model.provider
    return caught.value


async def read(model: HTTPModel, texts: list[str], after_batch: Callable[[], object]) -> None:
    """Add the text of every batch of an answer to ``texts``."""
    async with model.stream(HISTORY) as batches:
        async for batch in batches:
            texts.append("".join(chunk.get_text() for chunk in batch))
            after_batch()


def key_of(request: Received, case: ProviderCase) -> str:
    """The key of a request; some versions of Anthropic's package send it as a bearer token."""
    name, prefix = case.key_header
    bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
    return request.headers.get(name, bearer).removeprefix(prefix)


def test_every_format_has_a_case() -> None:
    assert CASES.keys() == FORMATS.keys()


# --- requests and responses -------------------------------------------------------------------------------------


async def test_the_request_is_as_the_api_wants_it_and_the_response_streams(case: ProviderCase) -> None:
    async with ScriptedUpstream(case.whole_response()) as upstream:
        # A trailing slash of the address is ignored.
        model = case.model(upstream.base_url + "/")
        answer = await ask(model, NO_OPTIONS, HISTORY)
        request = await upstream.received()
    assert (request.method, request.path) == ("POST", f"/v1{case.path}")
    assert request.headers["content-type"] == "application/json"
    assert key_of(request, case) == "secret"
    assert request.json == case.request
    assert (answer.message().text, answer.error, answer.finished) == ("Hello", None, True)
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (3, 2)
    assert (model.provider, model.name) == (case.name, "m")
    assert type(model.converter) is type(case.converter)


async def test_the_default_address_is_that_of_the_provider(case: ProviderCase) -> None:
    model = case.model(None)
    if isinstance(model, DirectModel):
        url, _, _ = model._request(HISTORY, {})  # pyright: ignore[reportPrivateUsage]  # nothing is sent
        assert url == f"{case.default_url}{case.path}"
    else:
        client: Any = vars(model)["_client"]
        assert str(client.base_url) == case.default_url
    await model.aclose()


async def test_ids_of_calls_are_made_such_as_the_provider_takes(case: ProviderCase) -> None:
    odd = HISTORY.model_validate_json(HISTORY.model_dump_json().replace("call00001", "functions.weather:0"))
    async with ScriptedUpstream(case.whole_response()) as upstream:
        await ask(case.model(upstream.base_url), NO_OPTIONS, odd)
        request = await upstream.received()
    pattern = case.converter.id_pattern
    taken = pattern is None or pattern.fullmatch("functions.weather:0") is not None
    assert (b"functions.weather:0" in request.body) is taken
    assert b"Sunny" in request.body


async def test_parameters_are_members_of_the_request(case: ProviderCase) -> None:
    async with ScriptedUpstream(case.whole_response()) as upstream:
        parameters = {**case.parameters, "from_the_future": {"a": [1]}}
        await ask(case.model_at(upstream, parameters=parameters), NO_OPTIONS, HISTORY)
        request = await upstream.received()
    assert request.json == {**case.request, **parameters}


async def test_what_has_arrived_is_delivered_before_the_rest(case: ProviderCase) -> None:
    arrived, texts = anyio.Event(), list[str]()
    async with ScriptedUpstream(case.response(case.begin, Wait(arrived), case.rest)) as upstream:
        model = case.model_at(upstream)
        await read(model, texts, lambda: "".join(texts) == "Hel" and arrived.set())
        await model.aclose()
    assert "".join(texts) == "Hello"


async def test_headers_of_the_context_go_with_the_request(case: ProviderCase) -> None:
    async with ScriptedUpstream(case.whole_response()) as upstream:
        for headers in ({"traceparent": "00-1-2-01"}, {}):
            token = REQUEST_HEADERS.set(headers)
            try:
                await ask(case.model_at(upstream), NO_OPTIONS, HISTORY)
            finally:
                REQUEST_HEADERS.reset(token)
        with_it, without = upstream.requests
    assert with_it.headers["traceparent"] == "00-1-2-01"
    assert "traceparent" not in without.headers
    assert with_it.body == without.body


async def test_a_call_in_a_message_of_the_user_is_refused_before_anything_is_sent(case: ProviderCase) -> None:
    wrong = Message(role=Role.USER, content=(ContentPartToolCall(id="c", name="f"),))
    async with ScriptedUpstream(case.whole_response()) as upstream:
        with pytest.raises(ProtocolError, match="tool call"):
            await ask(case.model_at(upstream), NO_OPTIONS, History(conversation=(wrong,)))
        assert upstream.requests == []


# --- keys -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("empty_first", [False, True])
async def test_the_first_key_of_the_environment_is_sent(
    case: ProviderCase, empty_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for position, variable in enumerate(case.key_variables):
        monkeypatch.setenv(variable, f"key {position}")
    expected = 0
    if empty_first and len(case.key_variables) > 1:
        monkeypatch.setenv(case.key_variables[0], "")
        expected = 1
    async with ScriptedUpstream(case.whole_response()) as upstream:
        await ask(case.model_at(upstream, api_key=None), NO_OPTIONS, HISTORY)
        request = await upstream.received()
    assert key_of(request, case) == f"key {expected}"


async def test_without_a_key_the_variables_are_named(
    case: ProviderCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    for other in CASES.values():
        for variable in set(other.key_variables) - set(case.key_variables):
            monkeypatch.setenv(variable, "another provider's")
    if not case.needs_key:
        async with ScriptedUpstream(case.whole_response()) as upstream:
            await ask(case.model_at(upstream, api_key=None), NO_OPTIONS, HISTORY)
            assert case.key_header[0] not in upstream.requests[0].headers
        return
    with pytest.raises(ConfigurationError) as caught:
        case.model(None, api_key=None)
    assert all(variable in str(caught.value) for variable in case.key_variables)
    assert "'m'" in str(caught.value)


@pytest.mark.parametrize("status", [401, 403])
async def test_refused_credentials_are_not_shown_to_callers(case: ProviderCase, status: int) -> None:
    refusal = json_answer({"error": {"message": "Incorrect API key: secret"}}, status)
    async with ScriptedUpstream(refusal) as upstream:
        error = await failing(case.model_at(upstream))
    assert error.message.startswith("the provider refused this server's credentials")
    assert "TAILRACE_API_KEY" in error.message
    assert "secret" not in f"{error} {error.details}"


async def test_a_key_in_an_error_of_the_stream_is_removed(case: ProviderCase) -> None:
    key = "sk-0123456789abcdef"
    failure = case.failure(f"bad key {key}, sorry")
    async with ScriptedUpstream(case.response(case.begin, failure)) as upstream:
        answer = await ask(case.model_at(upstream, api_key=key), NO_OPTIONS, HISTORY)
    assert answer.error is not None
    assert answer.error.message.startswith("bad key ")
    assert key not in f"{answer.error} {answer.error.details}"


# --- error statuses and retries ---------------------------------------------------------------------------------


async def test_a_refusal_has_the_providers_words_and_is_not_sent_again(case: ProviderCase) -> None:
    async with ScriptedUpstream(json_answer(case.refusal, 404)) as upstream:
        error = await failing(case.model_at(upstream, max_retries=2))
        assert len(upstream.requests) == 1
    assert (error.fault, error.status) == (UpstreamFault.STATUS, 404)
    assert (error.message, error.code) == case.refused


async def test_a_refusal_that_is_no_json_is_reported(case: ProviderCase) -> None:
    async with ScriptedUpstream([Head(400, {"content-type": "text/plain"}), b"no"]) as upstream:
        error = await failing(case.model_at(upstream))
    assert (error.fault, error.status, error.details) == (UpstreamFault.STATUS, 400, "no")


async def test_a_redirect_is_not_followed(case: ProviderCase) -> None:
    async with ScriptedUpstream([Head(307, {"location": "http://127.0.0.1:9/elsewhere"})]) as upstream:
        error = await failing(case.model_at(upstream))
        assert len(upstream.requests) == 1
    assert (error.fault, error.status) == (UpstreamFault.STATUS, 307)
    assert "TAILRACE_BASE_URL" in error.message


@pytest.mark.parametrize("status", [429, 503])
async def test_a_request_that_is_refused_for_the_moment_is_sent_again(
    case: ProviderCase, status: int
) -> None:
    busy = json_answer(case.refusal, status, {"retry-after-ms": "1"})
    async with ScriptedUpstream(busy, case.whole_response()) as upstream:
        answer = await ask(case.model_at(upstream, max_retries=2), NO_OPTIONS, HISTORY)
        first, second = upstream.requests
    assert answer.message().text == "Hello"
    assert first.body == second.body


async def test_retries_have_an_end(case: ProviderCase) -> None:
    busy = json_answer(case.refusal, 429, {"retry-after-ms": "1", "retry-after": "7"})
    async with ScriptedUpstream(busy) as upstream:
        error = await failing(case.model_at(upstream, max_retries=1))
        assert len(upstream.requests) == 2
    assert (error.status, error.retry_after, error.tries) == (429, 0.001, 2)


# --- interrupted responses --------------------------------------------------------------------------------------


async def test_an_error_in_the_stream_is_reported_beside_what_came_before(case: ProviderCase) -> None:
    async with ScriptedUpstream(case.response(case.begin, case.failure("out of memory"))) as upstream:
        answer = await ask(case.model_at(upstream), NO_OPTIONS, HISTORY)
    assert answer.message().text == "Hel"
    assert answer.error is not None
    assert (answer.error.fault, answer.error.provider) == (UpstreamFault.PROVIDER, case.name)
    assert (answer.error.message, answer.error.code) == ("out of memory", case.code)


async def test_a_body_that_ends_too_soon_is_truncated(case: ProviderCase) -> None:
    async with ScriptedUpstream(case.response(case.begin)) as upstream:
        answer = await ask(case.model_at(upstream), NO_OPTIONS, HISTORY)
    assert answer.message().text == "Hel"
    assert answer.error is not None
    assert answer.error.fault is UpstreamFault.TRUNCATED


@pytest.mark.parametrize(
    "ending",
    [Cut(), Reset(), Shut(), Raw(b"zz\r\nwhat is this?\r\n")],
    ids=["cut", "reset", "shut", "no HTTP"],
)
async def test_a_connection_that_breaks_is_an_error_behind_what_came(
    case: ProviderCase, ending: Step
) -> None:
    arrived, texts = anyio.Event(), list[str]()
    async with ScriptedUpstream(case.response(case.begin, Wait(arrived), ending)) as upstream:
        model = case.model_at(upstream, max_retries=2)
        with pytest.raises(UpstreamError) as caught:
            await read(model, texts, arrived.set)
        await model.aclose()
        assert len(upstream.requests) == 1
    assert "".join(texts) == "Hel"
    assert (caught.value.fault, caught.value.provider) == (UpstreamFault.TRUNCATED, case.name)
    assert caught.value.tries == 1
    assert "400" not in str(caught.value)  # the transport's message, not the provider's


@pytest.mark.parametrize("begun", [False, True], ids=["no response", "half a response"])
async def test_a_provider_that_falls_silent_is_an_error(case: ProviderCase, begun: bool) -> None:
    steps = case.response(case.begin, Hang()) if begun else [Hang()]
    async with ScriptedUpstream(steps) as upstream:
        error = await failing(case.model_at(upstream, read_timeout=0.2))
    assert (error.fault, error.message) == (
        UpstreamFault.TIMEOUT,
        "the provider sent nothing for 0.2 seconds",
    )


async def test_a_provider_that_is_away_cannot_be_reached(case: ProviderCase) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    error = await failing(case.model(f"http://127.0.0.1:{port}/v1"))
    assert (error.fault, error.tries) == (UpstreamFault.CONNECTION, 1)


@pytest.mark.parametrize("begun", [False, True], ids=["no response", "half a response"])
async def test_cancelling_closes_the_connection(case: ProviderCase, begun: bool) -> None:
    arrived, texts = anyio.Event(), list[str]()
    steps = case.response(case.begin, Hang()) if begun else [Hang()]
    async with ScriptedUpstream(steps) as upstream:
        model = case.model_at(upstream)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read, model, texts, arrived.set)
            await upstream.received()
            if begun:
                await arrived.wait()
            tasks.cancel_scope.cancel()
        await upstream.requests[0].client_left.wait()
        await model.aclose()


async def test_leaving_early_closes_the_connection(case: ProviderCase) -> None:
    async with ScriptedUpstream(case.response(case.begin, Hang())) as upstream:
        model = case.model_at(upstream)
        async with model.stream(HISTORY) as batches:
            await anext(batches)
        request = await upstream.received()
        await request.client_left.wait()
        await model.aclose()

"""Models over HTTP against a scripted server."""

import asyncio
import socket
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import anyio
import httpx2
import pytest

from support.upstream import (
    Cut,
    Hang,
    Head,
    Received,
    Reset,
    ScriptedUpstream,
    Step,
    Wait,
    json_answer,
    openai_stream,
)
from tailrace.wrappers import ContentPartText, History, Message, Role, UpstreamError, UpstreamFault
from tailrace.wrappers.http import ConnectTimeout, ReadTimeout, TransportError, retries
from tailrace.wrappers.http.direct_model import DirectModel
from tailrace.wrappers.http.http_model import HTTPModel, is_timeout
from tailrace.wrappers.http.retries import retry_after
from tailrace.wrappers.openai import ChatCompletionsDecoder, OpenAIConverter
from tailrace.wrappers.openai.model import ChatCompletionsModel
from tailrace.wrappers.openai.request import request_members
from tailrace.wrappers.request_options import RequestOptions

HISTORY = History(conversation=(Message(role=Role.USER, content=(ContentPartText(text="Hi"),)),))
HELLO = openai_stream(["Hel", "lo"])
BEGUN = openai_stream(["Hel", "lo"], finish=None)
BUSY = json_answer({"error": "busy"}, 429, {"retry-after": "0.01"})


class PostingModel(DirectModel):
    """Posts Chat Completions requests without a provider's client."""

    provider = "posting"

    def __init__(
        self, base_url: str, *, read_timeout: float = 30.0, max_retries: int = 2, **parameters: Any
    ) -> None:
        super().__init__("m", read_timeout=read_timeout, max_retries=max_retries, parameters=parameters)
        self._url = f"{base_url}/chat/completions"
        self.attempts = 0

    @property
    def converter(self) -> OpenAIConverter:
        return OpenAIConverter()

    def _members(self, options: RequestOptions) -> dict[str, Any]:
        return request_members(options)

    def _request(
        self, history: History, parameters: Mapping[str, Any]
    ) -> tuple[str, Mapping[str, str], object]:
        self.attempts += 1
        messages = self.converter.from_history(history)
        body = {"model": self.name, "messages": messages, **parameters}
        return self._url, {"x-attempt": str(self.attempts)}, body

    def _decoder(self) -> ChatCompletionsDecoder:
        return ChatCompletionsDecoder(provider=self.provider)


class BytesModel(PostingModel):
    """Sends a signed body."""

    def _request(
        self, history: History, parameters: Mapping[str, Any]
    ) -> tuple[str, Mapping[str, str], object]:
        return self._url, {"content-type": "application/signed"}, b"signed"


async def read(model: HTTPModel) -> str:
    """The text of a response, and the message of each error in the stream."""
    texts: list[str] = []
    async with model.stream(HISTORY) as batches:
        async for chunks in batches:
            for chunk in chunks:
                error = chunk.details.error if chunk.details is not None else None
                texts.append(str(error) if error is not None else chunk.get_text())
    return "".join(texts)


async def failing(model: HTTPModel) -> UpstreamError:
    try:
        with pytest.raises(UpstreamError) as raised:
            await read(model)
    finally:
        await model.aclose()
    return raised.value


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make retries immediate where the provider sets no delay."""
    monkeypatch.setattr(retries, "_FIRST_PAUSE", 0.001)


# --- sending ----------------------------------------------------------------------------------------------------


async def test_a_body_of_bytes_is_sent_as_it_is() -> None:
    async with ScriptedUpstream(HELLO) as upstream:
        model = BytesModel(upstream.base_url)
        assert await read(model) == "Hello"
        await model.aclose()
        request = await upstream.received()
    assert (request.body, request.headers["content-type"]) == (b"signed", "application/signed")


async def test_a_model_can_be_used_again_after_it_was_closed() -> None:
    async with ScriptedUpstream(HELLO) as upstream:
        model = PostingModel(upstream.base_url)
        for _ in range(2):
            assert await read(model) == "Hello"
            await model.aclose()
        await model.aclose()


async def test_many_answers_may_be_open_at_once() -> None:
    go_on = anyio.Event()
    async with ScriptedUpstream([*BEGUN, Wait(go_on), *HELLO[3:]]) as upstream:
        model = PostingModel(upstream.base_url)
        async with anyio.create_task_group() as tasks:
            for _ in range(120):
                tasks.start_soon(read, model)
            await upstream.received(119)
            go_on.set()
        await model.aclose()


# --- retries ----------------------------------------------------------------------------------------------------


async def test_a_temporarily_rejected_request_is_sent_again_at_the_time_of_the_provider() -> None:
    async with ScriptedUpstream(BUSY, BUSY, HELLO) as upstream:
        model = PostingModel(upstream.base_url)
        assert await read(model) == "Hello"
        await model.aclose()
    # Each attempt is a new request, since some providers sign the time.
    assert [request.headers["x-attempt"] for request in upstream.requests] == ["1", "2", "3"]


@pytest.mark.usefixtures("no_pause")
@pytest.mark.parametrize("status", [408, 409, 500, 502, 503, 504, 529])
@pytest.mark.parametrize("pause", [None, "soon", "²", "-1", "nan", "inf", "Wed, 99 Foo 2026"])
async def test_a_request_is_sent_again_after_our_own_delay_if_the_provider_names_none(
    status: int, pause: str | None
) -> None:
    headers = {} if pause is None else {"retry-after": pause}
    async with ScriptedUpstream(json_answer({}, status, headers), HELLO) as upstream:
        model = PostingModel(upstream.base_url)
        assert await read(model) == "Hello"
        await model.aclose()


@pytest.mark.parametrize("status", [400, 404, 413, 422])
async def test_a_request_that_is_refused_for_good_is_not_sent_again(status: int) -> None:
    async with ScriptedUpstream(json_answer({"error": {"message": "no"}}, status), HELLO) as upstream:
        error = await failing(PostingModel(upstream.base_url))
    assert (error.message, error.status, len(upstream.requests)) == ("no", status, 1)


@pytest.mark.usefixtures("no_pause")
async def test_a_refused_connection_is_retried_and_then_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    model = PostingModel(f"http://127.0.0.1:{port}/v1")
    error = await failing(model)
    assert model.attempts == 3
    assert error.fault is UpstreamFault.CONNECTION
    assert error.tries == 3
    assert error.message.startswith("the provider cannot be reached: ")
    assert "\n" not in error.message


@pytest.mark.usefixtures("no_pause")
@pytest.mark.parametrize("step", [Reset(), Cut()])
async def test_a_connection_that_breaks_before_the_answer_is_tried_again(step: Step) -> None:
    async with ScriptedUpstream([step], HELLO) as upstream:
        model = PostingModel(upstream.base_url)
        assert await read(model) == "Hello"
        await model.aclose()


async def test_a_pause_beyond_the_limit_is_reported_and_not_shortened() -> None:
    async with ScriptedUpstream(json_answer({}, 429, {"retry-after": "86400"}), HELLO) as upstream:
        error = await failing(PostingModel(upstream.base_url))
    assert (error.retry_after, error.tries, len(upstream.requests)) == (86400.0, 1, 1)


@pytest.mark.usefixtures("no_pause")
@pytest.mark.parametrize(
    ("status", "header", "tries"), [(429, "false", 1), (400, "true", 2), (400, "maybe", 1)]
)
async def test_the_retry_header_of_a_provider_precedes_the_status(
    status: int, header: str, tries: int
) -> None:
    async with ScriptedUpstream(json_answer({}, status, {"x-should-retry": header})) as upstream:
        error = await failing(PostingModel(upstream.base_url, max_retries=1))
    assert (error.tries, len(upstream.requests)) == (tries, tries)


@pytest.mark.parametrize(
    ("headers", "pause"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "1500", "retry-after": "7"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "7"}, 7.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 -0000"}, 0.0),
        ({"retry-after": "later"}, None),
        ({}, None),
    ],
)
def test_the_requested_pause_is_read_in_every_form(headers: dict[str, str], pause: float | None) -> None:
    assert retry_after(headers) == pause


def test_a_time_of_day_is_a_pause_until_then() -> None:
    then = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    pause = retry_after({"retry-after": then})
    assert pause is not None
    assert 3000 < pause <= 3600


async def test_an_official_clients_tries_are_counted() -> None:
    busy = json_answer({"error": {"message": "busy", "code": "slow_down"}}, 429, {"retry-after-ms": "1"})
    async with ScriptedUpstream(busy) as upstream:
        model = ChatCompletionsModel("m", base_url=upstream.base_url, api_key="k", max_retries=2)
        error = await failing(model)
    assert (error.status, error.code, error.retry_after, error.tries) == (429, "slow_down", 0.001, 3)
    assert len(upstream.requests) == 3
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    model = ChatCompletionsModel("m", base_url=f"http://127.0.0.1:{port}/v1", api_key="k", max_retries=1)
    error = await failing(model)
    assert (error.fault, error.tries) == (UpstreamFault.CONNECTION, 2)


# --- error responses --------------------------------------------------------------------------------------------


def text_answer(*steps: Step, status: int = 400) -> list[Step]:
    return [Head(status, {"content-type": "text/plain"}), *steps]


REFUSALS: dict[str, tuple[list[Step], str, str | None]] = {
    "an error object": (json_answer({"error": {"message": "no", "code": "why"}}, 400), "no", "why"),
    "an error as text": (json_answer({"error": "no"}, 400), "no", None),
    "a message": (json_answer({"message": "no", "type": "t"}, 400), "no", "t"),
    "a detail": (json_answer({"detail": "no"}, 400), "no", None),
    "JSON text": (json_answer("no", 400), "no", None),
    "an empty object": (json_answer({}, 400), "the provider refused: Bad Request", None),
    "nothing": (text_answer(), "the provider refused: Bad Request", None),
    "plain text": (text_answer(b" no \n"), "no", None),
    "a page": (
        text_answer(b"\n<html><h1>Bad Gateway</h1></html>"),
        "the provider refused: Bad Request",
        None,
    ),
    "very much text": (text_answer(b"no " * 1000), "the provider refused: Bad Request", None),
    "bytes that are not text": (text_answer(b"\xff\xfe"), "\ufffd\ufffd", None),
    "a truncated body": (
        text_answer(b'{"error": {"message": "no', Cut()),
        '{"error": {"message": "no',
        None,
    ),
}


@pytest.mark.parametrize(("script", "message", "code"), REFUSALS.values(), ids=REFUSALS.keys())
async def test_a_refusal_in_any_form_is_one_line_and_keeps_its_message(
    script: list[Step], message: str, code: str | None
) -> None:
    async with ScriptedUpstream(script) as upstream:
        error = await failing(PostingModel(upstream.base_url))
    assert (error.message, error.code, error.status) == (message, code, 400)
    assert (error.fault, error.provider) == (UpstreamFault.STATUS, "posting")


async def test_a_page_is_kept_beside_the_message() -> None:
    async with ScriptedUpstream(text_answer(b"<html>down</html>")) as upstream:
        error = await failing(PostingModel(upstream.base_url))
    assert error.details == "<html>down</html>"


async def test_a_refusal_that_comes_in_pieces_is_read_to_its_end() -> None:
    (head, body) = json_answer({"error": {"message": "no"}}, 400)
    assert isinstance(body, bytes)
    go_on = anyio.Event()

    def script(_: Received) -> list[Step]:
        asyncio.get_running_loop().call_soon(go_on.set)
        return [head, body[:9], Wait(go_on), body[9:]]

    async with ScriptedUpstream(script) as upstream:
        assert (await failing(PostingModel(upstream.base_url))).message == "no"


async def test_a_refusal_without_an_end_counts_as_far_as_it_came() -> None:
    script = text_answer(b"no", Hang())
    async with ScriptedUpstream(script) as upstream:
        error = await failing(PostingModel(upstream.base_url, read_timeout=1))
    assert (error.message, error.status) == ("no", 400)


async def test_a_refusal_of_any_size_is_read_within_bounds() -> None:
    script = text_answer(*[b"x" * 100_000] * 40)
    async with ScriptedUpstream(script) as upstream:
        error = await failing(PostingModel(upstream.base_url))
    assert isinstance(error.details, str)
    assert len(error.details) <= 1000


# --- interrupted responses --------------------------------------------------------------------------------------


async def test_a_provider_that_never_answers_is_not_retried() -> None:
    async with ScriptedUpstream([Hang()], HELLO) as upstream:
        error = await failing(PostingModel(upstream.base_url, read_timeout=0.2))
        await upstream.requests[0].client_left.wait()
    assert (error.fault, len(upstream.requests)) == (UpstreamFault.TIMEOUT, 1)


async def test_a_body_that_is_no_stream_is_reported_by_the_decoder() -> None:
    page: list[Step] = [Head(200, {"content-type": "text/html"}), b"<html>"]
    async with ScriptedUpstream(page) as upstream:
        model = PostingModel(upstream.base_url)
        assert await read(model) == "posting: the provider sent a body that is not an event stream: '<html>'"
        await model.aclose()


# --- cancelling -------------------------------------------------------------------------------------------------


async def test_cancelling_closes_the_connection() -> None:
    async with ScriptedUpstream([*BEGUN, Hang()]) as upstream:
        model = PostingModel(upstream.base_url)
        begun = anyio.Event()

        async def listen() -> None:
            async with model.stream(HISTORY) as batches:
                async for _ in batches:
                    begun.set()

        cancelled_at = 0.0
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listen)
            await begun.wait()
            cancelled_at = anyio.current_time()
            tasks.cancel_scope.cancel()
        request = await upstream.received()
        await request.client_left.wait()
        assert request.left_at is not None
        assert request.left_at - cancelled_at < 0.1
        await model.aclose()


async def test_cancelling_ends_the_pause_before_another_attempt() -> None:
    async with ScriptedUpstream(json_answer({}, 429, {"retry-after": "50"})) as upstream:
        model = PostingModel(upstream.base_url)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read, model)
            await upstream.received()
            tasks.cancel_scope.cancel()
        await model.aclose()
    assert model.attempts == 1


async def test_an_answer_that_is_over_is_not_waited_for() -> None:
    async with ScriptedUpstream([*HELLO, Hang()]) as upstream:
        model = PostingModel(upstream.base_url)
        assert await read(model) == "Hello"
        await model.aclose()


# --- timeouts ---------------------------------------------------------------------------------------------------


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "timeout"),
    [
        (TimeoutError(), True),
        (ReadTimeout(), True),
        (ConnectTimeout(), True),
        (TransportError(), False),
        (caused(TransportError(), TimeoutError()), False),
        (caused(httpx2.ReadTimeout("x"), ReadTimeout()), True),
        (caused(httpx2.ReadTimeout("x"), TransportError()), False),
        (httpx2.ReadTimeout("x"), True),
        (httpx2.ConnectError("x"), False),
        (OSError(), False),
    ],
)
def test_a_dropped_connection_is_no_timeout_whatever_the_transport_calls_it(
    error: Exception, timeout: bool
) -> None:
    assert is_timeout(error) is timeout

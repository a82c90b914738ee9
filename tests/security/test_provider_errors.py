"""Provider errors reach callers without credentials and internal addresses."""

import base64
import html
import json
import logging
from typing import Any

import pytest
from pydantic import SecretStr

from support.live_server import serving
from support.rpc import Rpc, message
from support.upstream import Cut, Head, ScriptedUpstream, Step, json_answer, openai_stream, sse
from tailrace.server import Settings, create_app
from tailrace.streaming import Accumulator
from tailrace.streaming.conversion.chat_completion import to_chat_completion
from tailrace.wrappers import ContentPartText, History, Message, Role, UpstreamError
from tailrace.wrappers.http.http_model import HTTPModel
from tailrace.wrappers.providers import create_model
from tailrace.wrappers.redaction.redactor import MAX_MESSAGE, Redactor

KEY = "opaque+Key/0123456789"
OTHER_KEY = "sk-proj-0123456789abcdefghij"
USER = "http://user:pa55word@gateway.internal:8080/v1"
ERROR_TEXT = f"key {KEY} refused by {USER} at 10.1.2.3:9000, [fd00::1]:80 and localhost; Bearer {OTHER_KEY}; surrogate \ud800"
LEAKS = (KEY, OTHER_KEY, "user:", "pa55word", "gateway", "10.1.2.3", "fd00::1", "localhost", "127.0.0.1")
HISTORY = History(conversation=(Message(role=Role.USER, content=(ContentPartText(text="Hi"),)),))

# The error event of each format in the middle of a response.
FORMATS: dict[str, Any] = {
    "openai": {"error": {"message": ERROR_TEXT, "code": KEY}},
    "openai-responses": {"type": "error", "message": ERROR_TEXT, "code": KEY},
    "anthropic": {"type": "error", "error": {"type": KEY, "message": ERROR_TEXT}},
    "gemini": {"error": {"message": ERROR_TEXT, "code": 500, "status": KEY}},
    "ollama": {"error": ERROR_TEXT},
    "cohere": {"type": "error", "message": ERROR_TEXT},
    "mistral": {"object": "error", "message": ERROR_TEXT, "code": KEY},
    "bedrock": {"message": ERROR_TEXT},
}


def model_at(provider: str, url: str) -> HTTPModel:
    model = create_model(f"{provider}:m", base_url=url, api_key=KEY, max_retries=0)
    assert isinstance(model, HTTPModel)
    return model


async def error_of(model: HTTPModel) -> UpstreamError:
    """Return the error at the end of a response, in every protocol."""
    answer = Accumulator()
    try:
        async with model.stream(HISTORY) as batches:
            async for batch in batches:
                for chunk in batch:
                    answer.add(chunk)
        answer.close()
    except UpstreamError as error:
        return error
    finally:
        await model.aclose()
    assert answer.error is not None
    assert not leaks(json.dumps(to_chat_completion(answer)))
    return answer.error


def leaks(text: str) -> list[str]:
    return [leak for leak in LEAKS if leak in text]


def texts_of(error: UpstreamError) -> str:
    return f"{error} {error!r} {error.message} {error.code} {error.details!r}"


@pytest.mark.parametrize("status", [400, 503])
@pytest.mark.parametrize("provider", FORMATS)
async def test_a_refusal_repeats_no_key_and_no_internal_address(
    provider: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    async with ScriptedUpstream(
        json_answer({"error": {"message": ERROR_TEXT, "code": KEY}}, status)
    ) as upstream:
        error = await error_of(model_at(provider, upstream.base_url))
    assert error.status == status
    assert leaks(texts_of(error)) == []
    assert "[redacted]" in error.message
    texts_of(error).encode()  # no lone surrogate, which no response could contain


@pytest.mark.parametrize("provider", [name for name in FORMATS if name != "bedrock"])
async def test_an_error_in_the_middle_of_an_answer_repeats_neither(provider: str) -> None:
    payload = FORMATS[provider]
    line = json.dumps(payload).encode() + b"\n" if provider == "ollama" else sse(payload)
    async with ScriptedUpstream([Head(), line]) as upstream:
        error = await error_of(model_at(provider, upstream.base_url))
    assert leaks(texts_of(error)) == []
    assert "refused by" in error.message


@pytest.mark.parametrize(
    "script",
    [
        json_answer(ERROR_TEXT, 500),
        [Head(500, {"content-type": "text/plain"}), ERROR_TEXT.encode("utf-8", "replace")],
        [Head(), sse(ERROR_TEXT.encode("utf-8", "replace")[:57])],
        [Head(500, {"content-type": "text/plain"}), ERROR_TEXT[:200].encode("utf-8", "replace"), Cut()],
        json_answer({"error": {"message": {"nested": [ERROR_TEXT]}, KEY: ERROR_TEXT}}, 400),
    ],
    ids=["a JSON text", "plain text", "no JSON in an event", "broken off", "an object as the message"],
)
async def test_an_error_of_any_shape_repeats_neither(script: list[Step]) -> None:
    async with ScriptedUpstream(script) as upstream:
        error = await error_of(model_at("openai", upstream.base_url))
    assert leaks(texts_of(error)) == []


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("provider", ["openai", "anthropic", "gemini", "openai-responses"])
async def test_refused_credentials_are_reported_in_our_own_words(provider: str, status: int) -> None:
    async with ScriptedUpstream(
        json_answer({"error": {"message": ERROR_TEXT, "type": "auth"}}, status)
    ) as upstream:
        error = await error_of(model_at(provider, upstream.base_url))
    variable = {"anthropic": "ANTHROPIC_API_KEY", "gemini": "GEMINI_API_KEY"}.get(provider, "OPENAI_API_KEY")
    assert error.message.startswith("the provider refused this server's credentials")
    assert "TAILRACE_API_KEY" in error.message
    assert variable in error.message
    assert error.details is None
    # The operator's log has the provider's message, with addresses and without keys.
    assert "refused by" in error.diagnosis
    assert "gateway.internal" in error.diagnosis
    assert KEY not in error.diagnosis
    assert "pa55word" not in error.diagnosis


async def test_refused_credentials_in_a_stream_are_reported_in_our_own_words() -> None:
    event = sse({"error": {"message": ERROR_TEXT, "code": 401}})
    async with ScriptedUpstream([Head(), event]) as upstream:
        error = await error_of(model_at("openai", upstream.base_url))
    assert error.message.startswith("the provider refused this server's credentials")


async def test_a_task_its_history_and_the_facade_show_neither_key_nor_address(
    caplog: pytest.LogCaptureFixture,
) -> None:
    script = [*openai_stream(["Hel"], finish=None), sse({"error": {"message": ERROR_TEXT, "code": KEY}})]
    async with ScriptedUpstream(script) as upstream:
        settings = Settings(
            model="openai:m", base_url=upstream.base_url, api_key=SecretStr(KEY), store="sqlite://"
        )
        async with serving(create_app(settings)) as url, Rpc(url) as rpc:
            task = (await rpc.result("SendMessage", message()))["task"]
            kept = await rpc.result("GetTask", {"id": task["id"]})
            chat = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
            _, answer = await rpc.raw(json.dumps(chat).encode(), path="/v1/chat/completions")
    assert task["status"]["state"] == "TASK_STATE_FAILED"
    assert leaks(json.dumps([task, kept, answer])) == []
    assert KEY not in caplog.text


async def test_the_log_has_the_reason_for_rejected_credentials_without_the_key(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "tailrace.server")
    async with ScriptedUpstream(json_answer({"error": {"message": f"unknown key {KEY}"}}, 401)) as upstream:
        settings = Settings(
            model="openai:m", base_url=upstream.base_url, api_key=SecretStr(KEY), store="sqlite://"
        )
        async with serving(create_app(settings)) as url, Rpc(url) as rpc:
            task = (await rpc.result("SendMessage", message()))["task"]
    assert "TAILRACE_API_KEY" in task["status"]["message"]["parts"][0]["text"]
    assert "unknown key [redacted]" in caplog.text
    assert KEY not in caplog.text


async def test_a_provider_that_is_away_is_not_named_to_callers(unused_tcp_port: int) -> None:
    model = model_at("openai", f"http://127.0.0.1:{unused_tcp_port}/v1?key=pa55word")
    error = await error_of(model)
    assert "cannot be reached" in error.message
    assert leaks(texts_of(error)) == []
    assert "127.0.0.1" in error.diagnosis
    assert "pa55word" not in error.diagnosis


@pytest.mark.parametrize("size", [5_000, 900_000])
@pytest.mark.parametrize("is_object", [True, False])
async def test_an_error_text_is_bounded(size: int, *, is_object: bool) -> None:
    text = "x y" * (size // 3)
    body = {"error": {"message": text, "code": text}} if is_object else text
    async with ScriptedUpstream(json_answer(body, 400)) as upstream:
        error = await error_of(model_at("openai", upstream.base_url))
    assert len(error.message) <= MAX_MESSAGE
    assert len(error.code or "") <= 100
    assert len(json.dumps(error.details)) <= 10_000


# --- the redactor ---------------------------------------------------------------------------------------------------

BASIC = base64.b64encode(b"robot:s3cretpass").decode()
REDACTOR = Redactor.of_request(
    "https://llm.corp.example/v1?key=query-key-1",
    {"authorization": f"Basic {BASIC}", "x-api-key": 'quo"te\\d-key'},
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"Basic {BASIC}", "[redacted]"),
        ("password s3cretpass", "password [redacted]"),
        ("query-key-1 and quo%22te%5Cd-key", "[redacted] and [redacted]"),
        (json.dumps({"key": 'quo"te\\d-key'}), '{"key": "[redacted]"}'),
        ("https://a:b@api.example.com/x", "https://[redacted]@api.example.com/x"),
        ("https://a:b/c@api.example.com/x", "https://[redacted]@api.example.com/x"),
        ("GET https://api.example.com/?key=abc&x=1", "GET https://api.example.com/?key=[redacted]&x=1"),
        ("Authorization: Bearer abcdefgh123", "Authorization: Bearer [redacted]"),
        ("connect to llm.corp.example:443", "connect to [internal address]"),
        ("http://vllm:8000/v1/chat is down", "[internal address] is down"),
        ("postgres://a:b@10.0.0.3:5432/db", "[internal address]"),
        (
            "169.254.169.254, 192.168.0.1:80 and ::1",
            "[internal address], [internal address] and [internal address]",
        ),
        ("::ffff:10.0.0.1 [fe80::1%eth0]:80", "[internal address] [internal address]"),
        ("cut off: password s3cretp…", "cut off: password [redacted]…"),
        ("cut off: https://root:hunter", "cut off: https://[redacted]"),
        ("db.prod.svc.cluster.local. LOCALHOST:80", "[internal address]. [internal address]"),
    ],
)
def test_what_is_secret_is_removed(text: str, shown: str) -> None:
    assert REDACTOR.for_callers(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "Incorrect API key provided: sk-ab****wxyz. See https://platform.openai.com/account/api-keys.",
        "at most 8192 tokens; max_tokens=9000 is too large (1.2.3.4)",
        "std::vector at 12:30:59, 2606:4700::1111 or 8.8.8.8:53",
        "the model `gpt-5` does not exist or you do not have access to it",
        "Unexpected token: '<' at line 1; the password is required, the field secret has no value",
    ],
)
def test_what_is_not_secret_stays(text: str) -> None:
    assert REDACTOR.for_callers(text) == text


MIXED_KEY = "sk-Proj/4f<8&2+e1c9"
LONG = Redactor(secrets=[MIXED_KEY])


def escaped(pattern: str) -> str:
    """Return the key with every second character escaped."""
    return "".join(pattern.format(ord(each)) if at % 2 else each for at, each in enumerate(MIXED_KEY))


@pytest.mark.parametrize(
    "text",
    [
        MIXED_KEY.upper(),
        html.escape(MIXED_KEY),
        MIXED_KEY.encode().hex(),
        MIXED_KEY.encode().hex().upper(),
        base64.b64encode(MIXED_KEY.encode()).decode(),
        base64.b64encode(f"u:{MIXED_KEY}:p".encode()).decode(),
        base64.b64encode(f"xu:{MIXED_KEY}".encode()).decode(),
        base64.urlsafe_b64encode(f"?>{MIXED_KEY}".encode()).decode(),
        escaped("&#{};"),
        escaped("&#x{:x};"),
        escaped("%{:02x}"),
        escaped("\\u{:04x}"),
        escaped("\\x{:02x}"),
        f"{MIXED_KEY[:9]}\n  {MIXED_KEY[9:]}",
        f"{MIXED_KEY[:9]}\u200b{MIXED_KEY[9:]}",
        f"{MIXED_KEY.upper()[:12]}…",
    ],
)
def test_a_key_in_another_form_is_removed(text: str) -> None:
    shown = LONG.for_callers(f"the key {text}")
    assert "[redacted]" in shown
    for size in range(len(text) - 8):
        assert text[size : size + 8] not in shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("host=db password=hunter22 user=x", "host=db password=[redacted] user=x"),
        ("PASSWORD = 'hun ter' sslmode=off", "PASSWORD = [redacted] sslmode=off"),
        ("Server=x;Pwd={a;b};Encrypt=yes", "Server=x;Pwd=[redacted];Encrypt=yes"),
        ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG", "aws_secret_access_key = [redacted]"),
        ("AZURE_CLIENT_SECRET=abc~def.1", "AZURE_CLIENT_SECRET=[redacted]"),
        ('{"db_password": "hunter22", "user": "x"}', '{"db_password": [redacted], "user": "x"}'),
        ("-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY----- x", "[redacted] x"),
        ("cut off -----BEGIN PRIVATE KEY-----\nMII", "cut off [redacted]"),
    ],
)
def test_a_credential_by_its_name_is_removed(text: str, shown: str) -> None:
    assert LONG.for_callers(text) == shown


def test_an_operator_reads_addresses_and_no_credentials() -> None:
    text = f"http://a:b@10.0.0.3/ {BASIC} llm.corp.example"
    assert REDACTOR.for_log(text) == "http://[redacted]@10.0.0.3/ [redacted] llm.corp.example"


@pytest.mark.parametrize("colon", ["", ":", " : "])
def test_white_space_after_a_scheme_is_read_once(colon: str) -> None:
    """In quadratic time, this takes an hour: the limit of time of the test run applies."""
    spaces = " " * 400_000
    text = f"bearer{colon}{spaces}!"
    assert Redactor().for_log(text, 500_000) == text
    assert "abcdefgh12" not in Redactor().for_log(f"Bearer{colon or ' '} abcdefgh12")

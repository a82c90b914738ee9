"""The Bedrock model against a scripted server: addresses, keys, signatures, streams and errors."""

import datetime
import hashlib
import hmac
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from support.options import NOW, ODD, PLAIN, WEATHER, ask
from support.provider_cases import BEDROCK
from support.provider_rounds import CALLS
from support.upstream import Received, ScriptedUpstream, Step, json_answer
from tailrace.wrappers import (
    ConfigurationError,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    History,
    Message,
    RequestOptions,
    Role,
    ToolChoice,
    UpstreamError,
    UpstreamFault,
)
from tailrace.wrappers.bedrock import BedrockModel
from tailrace.wrappers.conversion.tool_names import LETTERS_DIGITS_DASHES
from tailrace.wrappers.request_options import NO_OPTIONS

VALID = LETTERS_DIGITS_DASHES.valid_name(ODD)
NAME = "anthropic.claude-sonnet-4-v1:0"
PROFILE = "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.amazon.nova-pro-v1:0"
HISTORY = History(
    system_message="Be brief.", conversation=(Message(role=Role.USER, content=(ContentPartText(text="Hi"),)),)
)
STREAM = BEDROCK.whole_response()
KEY_ID, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"


pytestmark = pytest.mark.usefixtures("bare_environment")


def root(upstream: ScriptedUpstream) -> str:
    return upstream.base_url.removesuffix("/v1")


async def refusal(model: BedrockModel) -> UpstreamError:
    with pytest.raises(UpstreamError) as caught:
        await ask(model, NO_OPTIONS, HISTORY)
    return caught.value


def signature(request: Received, host: str, region: str, token: str | None = None) -> str:
    """The signature that botocore computes for a received request at the time in its header."""
    signed = request.headers["authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
    again = AWSRequest(
        method=request.method,
        url=host + request.path,
        data=request.body,
        headers={name: request.headers[name] for name in signed if name != "host"},
    )
    cast("Any", again).context["timestamp"] = request.headers["x-amz-date"]
    signer = cast("Any", SigV4Auth(Credentials(KEY_ID, SECRET, token), "bedrock", region))
    return signer.signature(signer.string_to_sign(again, signer.canonical_request(again)), again)


async def test_the_key_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "from the environment")
    async with ScriptedUpstream(STREAM) as upstream:
        monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", root(upstream))
        await ask(BedrockModel(NAME), NO_OPTIONS, History(conversation=HISTORY.conversation))
        request = await upstream.received()
    assert request.headers["authorization"] == "Bearer from the environment"
    assert "system" not in request.json


@pytest.mark.parametrize(
    ("name", "path"),
    [
        (NAME, "/model/anthropic.claude-sonnet-4-v1:0/converse-stream"),
        (
            PROFILE,
            "/model/arn:aws:bedrock:us-east-1:123456789012:inference-profile%2Fus.amazon.nova-pro-v1:0/converse-stream",
        ),
        ("a model", "/model/a%20model/converse-stream"),
    ],
)
@pytest.mark.parametrize("token", [None, "session"])
async def test_a_request_is_signed_as_botocore_signs_it(
    name: str, path: str, token: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    if token is not None:
        monkeypatch.setenv("AWS_SESSION_TOKEN", token)
    async with ScriptedUpstream(STREAM) as upstream:
        model = BedrockModel(name, base_url=root(upstream), region="eu-central-1")
        assert (await ask(model, NO_OPTIONS, HISTORY)).message().text == "Hello"
        request = await upstream.received()
    headers = request.headers
    assert request.path == path
    date = datetime.datetime.strptime(headers["x-amz-date"], "%Y%m%dT%H%M%SZ")
    scope = f"{KEY_ID}/{date:%Y%m%d}/eu-central-1/bedrock/aws4_request"
    names = "accept;content-type;host;x-amz-date" + (";x-amz-security-token" if token else "")
    assert headers["authorization"] == (
        f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders={names}, "
        f"Signature={signature(request, root(upstream), 'eu-central-1', token)}"
    )
    assert headers.get("x-amz-security-token") == token


async def test_a_signature_at_a_fixed_time_is_the_one_of_the_specification(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def at_that_time(remove_tzinfo: bool = True) -> datetime.datetime:
        return datetime.datetime(2026, 1, 2, 3, 4, 5)

    monkeypatch.setattr("botocore.auth.get_current_datetime", at_that_time)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    async with ScriptedUpstream(STREAM) as upstream:
        await ask(BedrockModel(PROFILE, base_url=root(upstream), region="us-east-1"), NO_OPTIONS, HISTORY)
        request = await upstream.received()
    assert request.headers["x-amz-date"] == "20260102T030405Z"
    # From AWS's documentation ("Signature Version 4 signing process"): the path is encoded a second time.
    canonical = "\n".join(
        (
            "POST",
            "/model/arn%3Aaws%3Abedrock%3Aus-east-1%3A123456789012%3A"
            "inference-profile%252Fus.amazon.nova-pro-v1%3A0/converse-stream",
            "",
            "accept:application/vnd.amazon.eventstream",
            "content-type:application/json",
            f"host:{request.headers['host']}",
            "x-amz-date:20260102T030405Z",
            "",
            "accept;content-type;host;x-amz-date",
            hashlib.sha256(request.body).hexdigest(),
        )
    )
    to_sign = "\n".join(
        (
            "AWS4-HMAC-SHA256",
            "20260102T030405Z",
            "20260102/us-east-1/bedrock/aws4_request",
            hashlib.sha256(canonical.encode()).hexdigest(),
        )
    )
    key = f"AWS4{SECRET}".encode()
    for step in ("20260102", "us-east-1", "bedrock", "aws4_request", to_sign):
        key = hmac.digest(key, step.encode(), "sha256")
    assert request.headers["authorization"].endswith(f"Signature={key.hex()}")


async def test_credentials_and_region_come_from_the_profile(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config").write_text("[profile work]\nregion = ap-south-1\n")
    (tmp_path / "credentials").write_text(
        f"[work]\naws_access_key_id = {KEY_ID}\naws_secret_access_key = {SECRET}\n"
    )
    monkeypatch.setenv("AWS_PROFILE", "work")
    async with ScriptedUpstream(STREAM) as upstream:
        await ask(BedrockModel(NAME, base_url=root(upstream)), NO_OPTIONS, HISTORY)
        request = await upstream.received()
    assert "/ap-south-1/bedrock/aws4_request" in request.headers["authorization"]


async def test_each_attempt_is_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    busy = json_answer(
        {"message": "slow down"}, 429, {"x-amzn-errortype": "ThrottlingException", "retry-after": "0.01"}
    )
    async with ScriptedUpstream(busy, STREAM) as upstream:
        answer = await ask(
            BedrockModel(NAME, base_url=root(upstream), region="us-east-1"), NO_OPTIONS, HISTORY
        )
        requests = [await upstream.received(0), await upstream.received(1)]
    assert answer.message().text == "Hello"
    for request in requests:
        assert signature(request, root(upstream), "us-east-1") in request.headers["authorization"]


@pytest.mark.parametrize(
    ("region", "root"),
    [
        ("us-west-2", "https://bedrock-runtime.us-west-2.amazonaws.com"),
        ("cn-north-1", "https://bedrock-runtime.cn-north-1.amazonaws.com.cn"),
    ],
)
def test_the_address_is_the_regions(region: str, root: str) -> None:
    assert BedrockModel(NAME, api_key="k", region=region).address == f"{root}/model/{NAME}/converse-stream"


def test_the_region_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert "eu-west-1" in BedrockModel(NAME, api_key="k").address
    monkeypatch.setenv("AWS_REGION", "eu-west-2")
    assert "eu-west-2" in BedrockModel(NAME, api_key="k").address


def test_without_a_region_the_setting_is_named() -> None:
    with pytest.raises(ConfigurationError, match="AWS_REGION"):
        BedrockModel(NAME, api_key="k")


def test_without_credentials_the_settings_are_named() -> None:
    with pytest.raises(ConfigurationError, match=r"AWS_BEARER_TOKEN_BEDROCK.*AWS_ACCESS_KEY_ID"):
        BedrockModel(NAME, region="us-east-1")


def test_without_botocore_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'tailrace\[bedrock\]'"):
        BedrockModel(NAME, region="us-east-1")
    assert BedrockModel(NAME, region="us-east-1", api_key="k").name == NAME


REFUSALS: list[tuple[list[Step], str, str | None]] = [
    (
        json_answer({"message": "The model id is invalid"}, 400, {"x-amzn-errortype": "ValidationException:http://x/"}),
        "The model id is invalid",
        "ValidationException",
    ),
    (json_answer({"Message": "Not supported"}, 400), "Not supported", None),
    (json_answer({"message": "no", "code": "own"}, 400, {"x-amzn-errortype": "Other"}), "no", "own"),
]  # fmt: skip


@pytest.mark.parametrize(("script", "message", "code"), REFUSALS)
async def test_a_rejection_has_the_text_of_aws(script: list[Step], message: str, code: str | None) -> None:
    async with ScriptedUpstream(script) as upstream:
        error = await refusal(BedrockModel(NAME, base_url=root(upstream), api_key="k", max_retries=0))
    assert (error.fault, error.message, error.code) == (UpstreamFault.STATUS, message, code)
    assert error.provider == "bedrock"


FAILED = History(
    conversation=(
        Message(role=Role.USER, content=(ContentPartText(text="Hi"),)),
        Message(role=Role.MODEL, content=(ContentPartToolCall(id="t", name="f"),)),
        Message(
            role=Role.TOOL, content=(ContentPartToolResult(id="t", name="f", output="no", is_error=True),)
        ),
    )
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (NAME, {"toolUseId": "t", "status": "error", "content": [{"text": "no"}]}),
        ("meta.llama4-v1:0", {"toolUseId": "t", "content": [{"json": {"error": "no"}}]}),
    ],
)
def test_only_models_that_support_a_status_receive_it(name: str, expected: Mapping[str, Any]) -> None:
    model = BedrockModel(name, api_key="k", region="us-east-1")
    assert model.converter.from_history(FAILED)[-1]["content"] == [{"toolResult": expected}]


async def test_a_conversation_that_another_provider_began_goes_on() -> None:
    begun = History(
        conversation=(
            Message(role=Role.MODEL, content=(ContentPartText(text="Welcome."),)),
            Message(role=Role.USER, content=(ContentPartText(text="Weather?"),)),
            Message(
                role=Role.MODEL, content=(ContentPartToolCall(id="functions.weather:0", name="weather"),)
            ),
            Message(role=Role.USER, content=(ContentPartText(text="Never mind."),)),
        )
    )
    async with ScriptedUpstream(STREAM) as upstream:
        await ask(BedrockModel(NAME, base_url=root(upstream), api_key="k"), NO_OPTIONS, begun)
        request = await upstream.received()
    opening, welcome, _, call, answer = request.json["messages"]
    assert (opening["role"], welcome) == ("user", {"role": "assistant", "content": [{"text": "Welcome."}]})
    made = call["content"][0]["toolUse"]["toolUseId"]
    result, words = answer["content"]
    assert result["toolResult"]["toolUseId"] == made
    assert result["toolResult"]["status"] == "error"
    assert words == {"text": "Never mind."}


@pytest.mark.parametrize("mode", ["none", None])
async def test_tools_of_earlier_calls_are_declared_if_the_request_has_none(mode: Any) -> None:
    call, result = (
        ContentPartToolCall(id="1", name=ODD),
        ContentPartToolResult(id="1", name=ODD, output="Sunny"),
    )
    history = HISTORY.with_message(
        Message(role=Role.MODEL, content=(call,)), Message(role=Role.TOOL, content=(result,))
    )
    options = RequestOptions(tools=(NOW,), tool_choice=ToolChoice(mode=mode)) if mode else RequestOptions()
    async with ScriptedUpstream(CALLS["bedrock"]("1", VALID, "{}")) as upstream:
        model = BEDROCK.model_at(upstream, parameters={})
        answer = await ask(model, options, history)
        request = (await upstream.received()).json
    assert request["toolConfig"] == {"tools": [{"toolSpec": {"name": VALID, "inputSchema": {"json": PLAIN}}}]}
    assert [call.name for call in answer.message().tool_calls] == [ODD]


async def test_no_tools_are_sent_if_none_may_be_called() -> None:
    async with ScriptedUpstream(STREAM) as upstream:
        model = BEDROCK.model_at(upstream)
        await ask(model, RequestOptions(tools=(WEATHER,), tool_choice=ToolChoice(mode="none")))
        request = (await upstream.received()).json
    assert "toolConfig" not in request

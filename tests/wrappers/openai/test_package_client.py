"""A model that uses the caller's client of the openai package, against a scripted upstream."""

import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio
import httpx2
import pytest
from openai import AsyncAzureOpenAI, AsyncOpenAI, AzureOpenAI, OpenAI
from openai.types.chat import ChatCompletionChunk

from support.messages import accumulate
from support.upstream import (
    Cut,
    Hang,
    Head,
    ScriptedUpstream,
    SetEvent,
    Step,
    json_answer,
    openai_chunk,
    openai_stream,
    sse,
)
from tailrace.streaming import Agent
from tailrace.streaming.accumulator import Accumulator
from tailrace.streaming.conversion.recorded_stream import StreamConversion
from tailrace.wrappers import (
    ChunkWrapper,
    ConfigurationError,
    ContentPartText,
    History,
    Message,
    RequestOptions,
    Role,
    ToolDefinition,
    UpstreamError,
    UpstreamFault,
)
from tailrace.wrappers.format_detection import DetectingDecoder
from tailrace.wrappers.model import NO_OPTIONS, ChunkBatches, Model
from tailrace.wrappers.openai import ChatCompletionsDecoder, OpenAIConverter, OpenAIModel, wrap_chunk

HI = History(
    system_message="Be brief.", conversation=(Message(role=Role.USER, content=(ContentPartText(text="hi"),)),)
)
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
ANSWER = [
    sse(openai_chunk({"role": "assistant", "reasoning_content": "Greet."})),
    *openai_stream(["Hel", "lo"], usage=USAGE),
]
REFUSED = {"error": {"message": "Too many", "type": "rate_limit", "code": "rate_limited"}}


@asynccontextmanager
async def client_at(upstream: ScriptedUpstream, **arguments: Any) -> AsyncGenerator[AsyncOpenAI]:
    settings: dict[str, Any] = {"api_key": "key", "max_retries": 0, **arguments}
    async with AsyncOpenAI(base_url=upstream.base_url, **settings) as client:
        yield client


async def ask(model: Model, options: RequestOptions = NO_OPTIONS) -> Accumulator:
    accumulator = Accumulator()
    async with model.stream(HI, options) as batches:
        async for batch in batches:
            for chunk in batch:
                accumulator.add(chunk)
    accumulator.close()
    return accumulator


# --- the request ------------------------------------------------------------------------------------------------


async def test_the_clients_key_headers_and_address_are_used() -> None:
    async with (
        ScriptedUpstream(ANSWER) as upstream,
        client_at(upstream, default_headers={"x-team": "blue"}, organization="org") as client,
    ):
        answer = await ask(OpenAIModel("gpt", client=client))
        (request,) = upstream.requests
    assert (request.method, request.path) == ("POST", "/v1/chat/completions")
    assert request.headers["authorization"] == "Bearer key"
    assert (request.headers["x-team"], request.headers["openai-organization"]) == ("blue", "org")
    assert request.json == {
        "model": "gpt",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert answer.error is None
    assert answer.message().text == "Hello"
    assert answer.message().reasoning == "Greet."  # a field that is not in the package
    assert answer.usage is not None
    assert answer.usage.output_tokens == 2


async def test_a_deployment_of_azure_receives_requests_in_the_form_of_azure() -> None:
    async with ScriptedUpstream(ANSWER) as upstream:
        client = AsyncAzureOpenAI(
            azure_endpoint=upstream.base_url.removesuffix("/v1"), api_key="azure", api_version="2024-10-21"
        )
        async with client:
            answer = await ask(OpenAIModel("my-deployment", client=client))
        (request,) = upstream.requests
    assert request.path == "/openai/deployments/my-deployment/chat/completions?api-version=2024-10-21"
    assert request.headers["api-key"] == "azure"
    assert "authorization" not in request.headers
    assert request.json["messages"][-1] == {"role": "user", "content": "hi"}
    assert answer.message().text == "Hello"


async def test_a_token_provider_of_azure_is_called_for_each_request() -> None:
    tokens = iter(["first", "second"])

    async def token() -> str:
        return next(tokens)

    async with ScriptedUpstream(ANSWER) as upstream:
        client = AsyncAzureOpenAI(
            azure_endpoint=upstream.base_url.removesuffix("/v1"),
            azure_ad_token_provider=token,
            api_version="2024-10-21",
        )
        async with client:
            model = OpenAIModel("gpt", client=client)
            await ask(model)
            await ask(model)
        assert [each.headers["authorization"] for each in upstream.requests] == [
            "Bearer first",
            "Bearer second",
        ]


async def test_the_clients_own_transport_sends_the_request() -> None:
    sent: list[str] = []

    async def note(request: httpx2.Request) -> None:
        sent.append(request.url.path)

    async with ScriptedUpstream(ANSWER) as upstream:
        http = httpx2.AsyncClient(event_hooks={"request": [note]})
        async with client_at(upstream, http_client=http) as client:
            await ask(OpenAIModel("gpt", client=client))
    assert sent == ["/v1/chat/completions"]


async def test_parameters_and_options_are_members_of_the_request() -> None:
    parameters = {
        "temperature": 0.5,
        "from_the_future": {"a": 1},
        "extra_headers": {"x-trace": "1"},
        "extra_query": {"debug": "1"},
        "extra_body": {"top_k": 3},
    }
    tool = ToolDefinition(name="f", description="F.", parameters={"type": "object", "properties": {}})
    async with ScriptedUpstream(ANSWER) as upstream, client_at(upstream) as client:
        model = OpenAIModel("gpt", client=client, parameters=parameters)
        await ask(model, RequestOptions(tools=(tool,), max_output_tokens=5))
        (request,) = upstream.requests
    assert request.path == "/v1/chat/completions?debug=1"
    assert request.headers["x-trace"] == "1"
    assert (request.json["temperature"], request.json["top_k"]) == (0.5, 3)
    assert request.json["from_the_future"] == {"a": 1}
    assert request.json["tools"][0]["function"]["name"] == "f"
    assert request.json["max_tokens"] == 5
    assert not request.json.keys() & {"extra_headers", "extra_query", "extra_body"}


# --- errors and cancelling --------------------------------------------------------------------------------------


async def test_a_refusal_has_its_status_code_and_pause_and_the_client_retries() -> None:
    refusal = json_answer(REFUSED, 429, {"retry-after-ms": "1"})
    async with ScriptedUpstream(refusal) as upstream, client_at(upstream, max_retries=1) as client:
        with pytest.raises(UpstreamError, match="Too many") as raised:
            await ask(OpenAIModel("gpt", client=client))
        assert len(upstream.requests) == 2
    error = raised.value
    assert (error.fault, error.status, error.code) == (UpstreamFault.STATUS, 429, "rate_limited")
    assert (error.retry_after, error.tries, error.provider) == (0.001, 2, "openai")


async def test_a_provider_that_is_away_cannot_be_reached() -> None:
    async with AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="key", max_retries=0) as client:
        with pytest.raises(UpstreamError, match="cannot be reached") as raised:
            await ask(OpenAIModel("gpt", client=client))
    assert raised.value.fault is UpstreamFault.CONNECTION


async def test_a_stream_that_breaks_off_is_truncated_and_what_came_is_kept() -> None:
    texts: list[str] = []

    async def read(client: AsyncOpenAI) -> None:
        async with OpenAIModel("gpt", client=client).stream(HI) as batches:
            async for batch in batches:
                texts.extend(chunk.get_text() for chunk in batch)

    steps: list[Step] = [Head(), *openai_stream(["Hel"], finish=None), Cut()]
    async with ScriptedUpstream(steps) as upstream, client_at(upstream) as client:
        with pytest.raises(UpstreamError, match="connection broke") as raised:
            await read(client)
    assert raised.value.fault is UpstreamFault.TRUNCATED
    assert "".join(texts) == "Hel"


async def test_a_silent_provider_times_out_as_the_client_configures() -> None:
    steps: list[Step] = [*openai_stream(["Hel"], finish=None), Hang()]
    timeout = httpx2.Timeout(5, read=0.2)
    async with ScriptedUpstream(steps) as upstream, client_at(upstream, timeout=timeout) as client:
        with pytest.raises(UpstreamError, match="within the read timeout of the client") as raised:
            await ask(OpenAIModel("gpt", client=client))
    assert raised.value.fault is UpstreamFault.TIMEOUT


@pytest.mark.parametrize("begun", [False, True], ids=["before the answer", "in the answer"])
async def test_cancelling_closes_the_connection(begun: bool) -> None:
    waiting = anyio.Event()
    steps: list[Step] = [*(openai_stream(["Hel"], finish=None) if begun else ()), SetEvent(waiting), Hang()]
    async with ScriptedUpstream(steps) as upstream, client_at(upstream) as client:
        async with anyio.create_task_group() as group:
            group.start_soon(ask, OpenAIModel("gpt", client=client))
            await waiting.wait()
            group.cancel_scope.cancel()
        request = await upstream.received()
        with anyio.fail_after(5):
            await request.client_left.wait()


async def test_the_client_stays_the_callers() -> None:
    async with ScriptedUpstream(ANSWER) as upstream, client_at(upstream) as client:
        for _ in range(2):
            model = OpenAIModel("gpt", client=client)
            assert (await ask(model)).message().text == "Hello"
            await model.aclose()
        assert not client.is_closed()


def test_the_openai_package_is_imported_only_on_demand() -> None:
    script = """
import sys
import tailrace.wrappers.openai
import tailrace.streaming
from tailrace.server import create_app
print("openai" in sys.modules)
from tailrace.wrappers.openai import OpenAIModel
print("openai" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\nTrue\n"


async def test_a_server_that_takes_no_list_of_texts_gets_one() -> None:
    parts = (ContentPartText(text="a"), ContentPartText(text="b"))
    history = History(conversation=(Message(role=Role.USER, content=parts),))
    async with ScriptedUpstream(ANSWER) as upstream, client_at(upstream) as client:
        async with OpenAIModel("gpt", client=client, content_parts=False).stream(history):
            pass
        assert upstream.requests[0].json["messages"] == [{"role": "user", "content": "a\n\nb"}]


@pytest.mark.parametrize("kind", [OpenAI, AzureOpenAI])
def test_a_synchronous_client_is_refused(kind: Any) -> None:
    with kind(
        api_key="key",
        base_url="http://127.0.0.1:9/v1",
        **({"api_version": "1"} if kind is AzureOpenAI else {}),
    ) as client:
        with pytest.raises(ConfigurationError, match=f"Async{kind.__name__}"):
            OpenAIModel("gpt", client=client)


# --- a stream of the package's chunks ---------------------------------------------------------------------------


def chunks() -> list[ChatCompletionChunk]:
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "reasoning_content": "Greet."},
        {"content": "Hel"},
        {"content": "lo"},
    ]
    made = [openai_chunk(delta) for delta in deltas]
    made += [openai_chunk({}, finish="stop"), openai_chunk(usage=USAGE)]
    return [ChatCompletionChunk.model_validate(each) for each in made]


def fold(wrappers: list[ChunkWrapper[Any]]) -> tuple[Any, ...]:
    accumulator = accumulate(wrappers)
    return accumulator.message(), accumulator.usage, accumulator.metadata, accumulator.error


@pytest.mark.parametrize("kind", [ChatCompletionsDecoder, DetectingDecoder])
def test_a_decoder_takes_chunks_as_it_takes_bytes(kind: Any) -> None:
    def decoded(reads: list[Any]) -> tuple[Any, ...]:
        decoder = kind()
        return fold([wrapper for read in reads for wrapper in decoder.feed(read)] + decoder.close())

    from_chunks = decoded(list(chunks()))
    from_bytes = decoded([sse(each.model_dump(mode="json", exclude_unset=True)) for each in chunks()])
    assert from_chunks == from_bytes
    assert (from_chunks[0].text, from_chunks[0].reasoning, from_chunks[3]) == ("Hello", "Greet.", None)
    if kind is ChatCompletionsDecoder:
        assert (
            decoded([openai_chunk({"content": "Hello"}), openai_chunk({}, finish="stop")])[0].text == "Hello"
        )


def test_a_conversion_takes_chunks() -> None:
    conversion = StreamConversion(ChatCompletionsDecoder())
    events = [event for chunk in chunks() for event in conversion.feed(chunk)] + conversion.close()
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    assert [part["text"] for part in conversion.message()["parts"]] == ["Greet.", "Hello"]


def test_a_converter_takes_chunks_and_their_deltas() -> None:
    converter = OpenAIConverter()
    wrapped = converter.to_message([wrapper for chunk in chunks() for wrapper in wrap_chunk(chunk)])
    assert converter.to_message(chunks()) == wrapped
    deltas = [chunk.choices[0].delta for chunk in chunks() if chunk.choices]
    for response in (chunks(), deltas):
        assert converter.to_provider_messages(response) == [
            {
                "role": "assistant",
                "content": [{"type": "text", "text": "Hello"}],
            }
        ]


class PackageModel(Model):
    """A model that returns the stream of the openai package unchanged."""

    provider, name = "openai", "gpt"

    def __init__(self, client: AsyncOpenAI) -> None:
        self._client = client

    @property
    def converter(self) -> OpenAIConverter:
        return OpenAIConverter()

    def stream(
        self, history: History, options: RequestOptions = NO_OPTIONS
    ) -> AbstractAsyncContextManager[ChunkBatches]:
        return self._open(history)

    @asynccontextmanager
    async def _open(self, history: History) -> AsyncGenerator[Any]:
        messages: Any = self.converter.from_history(history)
        stream = await self._client.chat.completions.create(model=self.name, messages=messages, stream=True)
        async with stream:
            yield stream

    async def aclose(self) -> None:
        pass


@pytest.mark.parametrize("merge_reads", [True, False])
async def test_an_agent_takes_a_model_whose_stream_is_the_packages(merge_reads: bool) -> None:
    async with ScriptedUpstream(ANSWER) as upstream, client_at(upstream) as client:
        agent: Agent[str] = Agent(PackageModel(client), merge_reads=merge_reads)
        async with agent:
            result = await agent.run("hi")
            streamed = [delta.output async for delta in agent.run_stream("hi")]
    assert result.output == "".join(streamed) == "Hello"


async def test_an_agent_sends_requests_through_the_callers_client() -> None:
    async with ScriptedUpstream(ANSWER) as upstream, client_at(upstream) as client:
        async with Agent[str](OpenAIModel("gpt", client=client)) as agent:
            assert (await agent.run("hi")).output == "Hello"

"""An agent: a model that calls tools until it has a response.

::

    async with Agent("openai:gpt-5-mini", tools=[get_weather], instructions="Be brief.") as agent:
        first = await agent.run("What is the weather in Paris?")
        second = await agent.run("And tomorrow?", history=first.messages)

There is no hidden state: ``history`` has the earlier messages, and a result has the new ones, including all tool calls and
results. A round is one request with its response and the results of the called tools, which are one message.
"""

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing
from types import UnionType
from typing import TYPE_CHECKING, Any, Generic, Self, cast

from typing_extensions import TypeVar

from tailrace.streaming.accumulator import Accumulator
from tailrace.streaming.agent.events import (
    AgentError,
    BrokenRunError,
    ChatResult,
    Received,
    ResponseEnded,
    RoundEnded,
    Step,
    ToolEnded,
)
from tailrace.streaming.agent.trimming import HistoryPolicy, keep_all
from tailrace.streaming.agent.turn import (
    AgentTurn,
    CallModel,
    RunTools,
    TurnView,
    ends_in_half_a_call,
    open_calls,
)
from tailrace.streaming.instrumentation import RUN_OBSERVER
from tailrace.streaming.schemas.output import OutputReader
from tailrace.streaming.tools.tools import (
    DEFAULT_CONCURRENCY,
    DEFAULT_TIMEOUT,
    Tool,
    ToolFunction,
    ToolRunner,
    Toolset,
    as_tool,
)
from tailrace.streaming.turn_accumulator import TurnAccumulator, TurnDelta
from tailrace.wrappers import (
    ChunkWrapper,
    ConfigurationError,
    ContentPart,
    ContentPartText,
    ContentPartToolResult,
    FinishReason,
    History,
    Message,
    ProtocolError,
    Role,
    UpstreamError,
)
from tailrace.wrappers.conversion.options import NO_OPTIONS, RequestOptions
from tailrace.wrappers.conversion.tool_ids import unmatched_tools
from tailrace.wrappers.model import Model
from tailrace.wrappers.openai.decoder import wrap_chunk
from tailrace.wrappers.providers import create_model

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionChunk

T = TypeVar("T", default=str)
S = TypeVar("S")

DEFAULT_MAX_ROUNDS = 50
"""Requests that one turn may take."""

_REFUSED = frozenset({FinishReason.CONTENT_FILTER, FinishReason.RECITATION})

Prompt = str | Message | Sequence[ContentPart]
"""A message of the user: text, parts (the results of tools that the caller ran among them), or a whole message."""


class Agent(Generic[T]):
    """A model with tools.

    May be used for any number of runs at once. ``async with`` around the runs closes the model's connections at the end,
    and connects tools that are behind a connection (`Toolset`); without it each `run` connects those for itself.

    Args:
        model: As ``provider:model``, with the key in the environment; or a model, which the agent closes.
        tools: Functions, tools, and sets of tools.
        instructions: The system message of every request, before that of a history.
        output_type: The answer is to be JSON: what `Agent.run` gives as ``output`` (a pydantic model, a dataclass, a
            ``TypedDict``, a list or a union of them, any type that pydantic knows). None, or ``str``, for text. Type
            checkers are to be told of a union: ``agent: Agent[A | B] = Agent(…, output_type=A | B)``.
        options: What every request asks for; what a run asks for wins. A choice of tool that forces a call counts for
            the first request of a turn only, so that the turn can end.
        max_rounds: Requests that one turn may take.
        tool_timeout: Seconds that a tool may take which does not say so itself; ``math.inf`` for no limit.
        tool_concurrency: How many tools of one round run at once.
        history_policy: What of a long history is sent, see `tailrace.streaming.agent.trimming`.
        think_tags: Part the reasoning that an answer begins with, in ``<think>`` tags, from its text.
        merge_reads: True: what arrived with one read of the network is one step.

    Attributes:
        model: As given.
        reader: Reads the answer where it is to be JSON; None for text.

    Raises:
        ConfigurationError: The model is unknown or has no key, two tools have the same name, the output type has no
            JSON schema, or a limit is less than 1.
    """

    def __init__(
        self,
        model: str | Model,
        *,
        tools: Iterable[Tool | Toolset | ToolFunction] = (),
        instructions: str | None = None,
        output_type: type[T] | UnionType | None = None,
        options: RequestOptions = NO_OPTIONS,
        max_rounds: int = DEFAULT_MAX_ROUNDS,
        tool_timeout: float = DEFAULT_TIMEOUT,
        tool_concurrency: int = DEFAULT_CONCURRENCY,
        history_policy: HistoryPolicy = keep_all,
        think_tags: bool = True,
        merge_reads: bool = True,
    ) -> None:
        if max_rounds < 1:
            raise ConfigurationError(f"max_rounds is {max_rounds}, but no turn is shorter than 1 round")
        self.model = create_model(model) if isinstance(model, str) else model
        self._instructions = instructions
        self.reader = None if output_type in (None, str) else OutputReader.of_type(output_type)
        if self.reader is not None:
            options = options.model_copy(update={"output": self.reader.format})
        self._options = options
        self._max_rounds = max_rounds
        self._timeout = tool_timeout
        self._concurrency = tool_concurrency
        self._policy = history_policy
        self._think_tags = think_tags
        self._merge_reads = merge_reads
        given = list(tools)
        self._toolsets = [each for each in given if isinstance(each, Toolset)]
        self._tools = [as_tool(each) for each in given if not isinstance(each, Toolset)]
        self._runner: ToolRunner | None = None if self._toolsets else self._runner_of(self._tools)
        self._connections = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Connect the tools that have to be.

        Raises:
            ConfigurationError: What a set of tools needs is missing, or two tools have the same name.
            UpstreamError: One cannot be reached.
        """
        async with AsyncExitStack() as stack:
            if self._toolsets:
                self._runner = await self._connect(stack)
            self._connections = stack.pop_all()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        """Disconnect the tools, and close the model."""
        if self._toolsets:
            self._runner = None
        try:
            await self._connections.aclose()
        finally:
            await self.model.aclose()

    async def run(
        self,
        prompt: Prompt,
        *,
        history: History | Iterable[Message] = (),
        options: RequestOptions = NO_OPTIONS,
    ) -> ChatResult[T]:
        """Answer a prompt; the whole result at once. Cancelling ends the request and the tools.

        Args:
            prompt: What the user says; the first of the new messages.
            history: What was said before.
            options: What else is asked. Tools in it are the caller's to run: a call of one ends the run, see
                `ChatResult.open_calls`.

        Raises:
            BrokenRunError: The provider failed, or broke off; an `UpstreamError` and an `AgentError`.
            AgentError: The rounds came to no end, an answer was cut in the middle of a call, or is not what
                ``output_type`` says. Its ``messages`` are what the run brought.
            ConfigurationError: A tool of the caller's has the name of one of the agent's; or a set of tools cannot be
                connected.
            UpstreamError: A set of tools cannot be reached.
            ProtocolError: A tool result in the prompt answers no open call of the history; or the provider cannot be
                told something of the conversation or the options.
        """
        turn = self._turn(prompt, history)
        async with AsyncExitStack() as stack:
            runner = self._runner or await self._connect(stack)
            steps = await stack.enter_async_context(
                aclosing(self.steps(turn, options=options, runner=runner))
            )
            async for _ in steps:
                pass
        self._raise_for(turn)
        result = _result(turn, turn.take_new(), last=True)
        if self.reader is None or result.open_calls:
            return cast("ChatResult[T]", result)
        return cast("ChatResult[T]", _with_output(result, self._read_output(turn)))

    async def run_stream(
        self,
        prompt: Prompt,
        *,
        history: History | Iterable[Message] = (),
        options: RequestOptions = NO_OPTIONS,
    ) -> AsyncGenerator[ChatResult[str]]:
        """Answer a prompt; each result has the content that is new since the one before, and none is empty.

        Text comes as it arrives, with an ``output_type`` too (`parse_output` reads the text of the last answer: that of
        the last of the messages). Leaving the loop ends the request as soon as the generator is closed: at once with
        ``aclosing``, else when Python collects it. Cancelling ends the request and the tools.

        Args:
            prompt: As for `run`.
            history: As for `run`.
            options: As for `run`.

        Raises:
            BrokenRunError: As `run`, after everything that had arrived.
            AgentError: As `run`, but for ``output_type``.
            ConfigurationError: As `run`; or the agent's tools have to be connected first (``async with``).
            ProtocolError: As `run`.
        """
        turn = self._turn(prompt, history)
        async with aclosing(self.steps(turn, options=options)) as steps:
            async for step in steps:
                # Not while tools run: a loop that is left then, and never closed, would hold their scope.
                if not isinstance(step, ToolEnded):
                    delta = turn.take_new()
                    if delta:
                        yield _result(turn, delta)
        self._raise_for(turn)
        yield _result(turn, turn.take_new(), last=True)

    def steps(
        self,
        fold: TurnAccumulator,
        *,
        options: RequestOptions = NO_OPTIONS,
        runner: ToolRunner | None = None,
        task_id: str = "",
        context_id: str = "",
        external_context_id: str = "",
    ) -> AsyncGenerator[Step]:
        """Run a turn to its end, step by step: `drive`, with each step as it is.

        Args:
            fold: What was said; folds what comes.
            options: As for `drive`.
            runner: As for `drive`.
            task_id: As for `drive`.
            context_id: As for `drive`.
            external_context_id: As for `drive`.

        Raises:
            AgentError: As `drive`.
            ConfigurationError: As `drive`.
            ProtocolError: As `drive`.
        """
        return self.drive(
            fold,
            _Steps(),
            options=options,
            runner=runner,
            task_id=task_id,
            context_id=context_id,
            external_context_id=external_context_id,
        )

    async def drive(
        self,
        fold: TurnAccumulator,
        view: TurnView[S],
        *,
        options: RequestOptions = NO_OPTIONS,
        runner: ToolRunner | None = None,
        task_id: str = "",
        context_id: str = "",
        external_context_id: str = "",
    ) -> AsyncGenerator[S]:
        """Drive a turn to its end: do the IO that its state machine (`AgentTurn`) asks for, and yield what a view makes of it.

        To be closed (``aclosing``) in the task in which it was begun; cancelling and closing end the request and the tools.
        A provider's failure is no exception here, but the `TurnAccumulator.error`; calls that the caller is to run are the
        `TurnAccumulator.unanswered_calls`.

        Args:
            fold: What was said; folds what comes.
            view: Makes of each step what is yielded.
            options: What the request asks for beyond what every request does.
            runner: The tools; those of the agent when None.
            task_id: For the tools' `ToolContext`.
            context_id: For the tools' `ToolContext`.
            external_context_id: For the tools' `ToolContext`.

        Raises:
            AgentError: The turn has taken all rounds that it may, and the view raises that.
            ConfigurationError: As `run_stream`.
            ProtocolError: The provider cannot be told something of the conversation or the options.
        """
        runner = runner or self._connected_runner()
        theirs = self._callers_tools(options, runner)
        turn = AgentTurn(
            fold,
            options=merged_options(self._options, options, runner),
            prepare=self._to_send,
            callers_tools=theirs,
            has_tools=bool(runner.definitions),
            max_rounds=self._max_rounds,
        )
        observer = RUN_OBSERVER.get()
        error: AgentError | None = None
        for shown in view.begin():
            yield shown
        try:
            while True:
                action = turn.next_action()
                if isinstance(action, CallModel):
                    response = fold.begin_response()
                    received = view.begin_response(response)
                    with observer.answering(self.model, action.options, fold) as watch:
                        try:
                            async with watch.sent(
                                self.model.stream(action.history, action.options)
                            ) as batches:
                                async for batch in batches:
                                    if batch.__class__ is not list:
                                        batch = _wrappers(batch)
                                    if not watch.chunks:
                                        watch.first_chunk()
                                    watch.chunks += len(batch)
                                    for chunks in (batch,) if self._merge_reads else zip(batch):
                                        changes = response.add_all(chunks)
                                        if changes:
                                            yield received(changes)
                                    if response.error is not None:
                                        break  # nothing more of it needs to be read
                                    batch = chunks = changes = ()  # not held while the next is awaited
                        except UpstreamError as failure:
                            turn.fail(failure.with_traceback(None))  # whose frames hold the turn
                        held_back = turn.end_response()
                    yield view.take(ResponseEnded(held_back))
                elif isinstance(action, RunTools):
                    running = runner.run(
                        action.calls,
                        others=theirs,
                        task_id=task_id,
                        context_id=context_id,
                        external_context_id=external_context_id,
                    )
                    async with aclosing(running):
                        async for result in running:
                            turn.tool_result(result)
                            yield view.take(ToolEnded(result))
                    turn.end_round()
                    yield view.take(RoundEnded())
                else:
                    break
        except AgentError as raised:
            error = raised
        for shown in view.close(error):
            yield shown

    def has_tool(self, name: str) -> bool:
        """Return whether the agent runs a tool of that name itself, as far as its tools are connected."""
        return self._runner is not None and self._runner.knows(name)

    def begin(self, history: History, *messages: Message, collect_output: bool = True) -> TurnAccumulator:
        """Create what folds a turn of this agent, for `steps` and `drive`.

        Args:
            history: What was said before, or all that was.
            messages: What begins the turn, to be the first of its new messages.
            collect_output: As `TurnAccumulator` takes it.
        """
        return TurnAccumulator(
            *messages, history=history, think_tags=self._think_tags, collect_output=collect_output
        )

    def parse_output(self, text: str, messages: tuple[Message, ...] = ()) -> T:
        """The object that an answer's text stands for.

        Args:
            text: The whole of it.
            messages: For the error.

        Raises:
            AgentError: It is none of ``output_type``.
        """
        if self.reader is None:
            return cast("T", text)
        try:
            return cast("T", self.reader.read(text))
        except ValueError as error:
            raise AgentError(str(error), messages) from None

    def _read_output(self, turn: TurnAccumulator) -> T:
        try:
            return self.parse_output(turn.last_text, turn.messages)
        except AgentError as error:
            why = str(error)
        refusal = turn.messages[-1].metadata.get("refusal")
        if turn.finish_reason is FinishReason.LENGTH:
            why = "the answer reached its length limit before it was whole"
        elif refusal or turn.finish_reason in _REFUSED:
            why = f"the model did not give the answer that was asked for: {refusal or turn.finish_reason}"
        raise AgentError(why, turn.messages)

    def _connected_runner(self) -> ToolRunner:
        if self._runner is None:
            raise ConfigurationError(
                "the agent's tools have to be connected before it can stream: use it in `async with`"
            )
        return self._runner

    def _callers_tools(self, options: RequestOptions, runner: ToolRunner) -> frozenset[str]:
        """Return the names of the tools that the caller runs."""
        theirs = self._options.tool_names | options.tool_names
        for name in theirs:
            if runner.knows(name):
                raise ConfigurationError(
                    f"the agent has a tool named {name!r} itself: give yours another name"
                )
        return theirs

    def _to_send(self, history: History) -> History:
        """Return what the model is given of a conversation."""
        system = "\n\n".join(filter(None, (self._instructions, history.system_message)))
        return self._policy(history.model_copy(update={"system_message": system or None}))

    def _turn(self, prompt: Prompt, history: History | Iterable[Message]) -> TurnAccumulator:
        messages = _messages_of(prompt)
        before = history if isinstance(history, History) else History(conversation=tuple(history))
        turn = self.begin(before, *messages)
        if any(message.tool_results for message in messages):
            for result in unmatched_tools(turn.history).results:
                if result.message >= len(before.conversation):
                    raise ProtocolError(f"no call of the history waits for the tool result {result.id!r}")
        return turn

    def _runner_of(self, tools: Iterable[Tool]) -> ToolRunner:
        return ToolRunner(tools, timeout=self._timeout, concurrency=self._concurrency)

    async def _connect(self, stack: AsyncExitStack) -> ToolRunner:
        tools = list(self._tools)
        for toolset in self._toolsets:
            tools += await stack.enter_async_context(toolset.connected())
        return self._runner_of(tools)

    def _raise_for(self, turn: TurnAccumulator) -> None:
        if turn.error is not None:
            raise BrokenRunError(turn.error, turn.messages) from turn.error
        if ends_in_half_a_call(turn):
            raise AgentError(
                "the answer reached its length limit in the middle of a tool call", turn.messages
            )


def merged_options(always: RequestOptions, given: RequestOptions, runner: ToolRunner) -> RequestOptions:
    """Merge the options of every request with those of one request; tools are added to the agent's own."""
    if given is NO_OPTIONS and not runner.definitions:
        return always
    explicit = {name: getattr(given, name) for name in given.model_fields_set}
    return always.model_copy(update={**explicit, "tools": (*runner.definitions, *always.tools, *given.tools)})


def _wrappers(batch: "Sequence[ChunkWrapper[Any]] | ChatCompletionChunk") -> Sequence[ChunkWrapper[Any]]:
    """Return the chunks of a batch; an iterator of the openai package has single chunks of its own instead."""
    return batch if isinstance(batch, list | tuple) else wrap_chunk(cast("ChatCompletionChunk", batch))


class _Steps:
    """The view of a turn that gives its steps as they are."""

    def begin(self) -> Sequence[Step]:
        return ()

    def begin_response(self, response: Accumulator) -> type[Received]:
        return Received

    def take(self, step: Step) -> Step:
        return step

    def close(self, error: AgentError | None) -> Sequence[Step]:
        if error is not None:
            raise error
        return ()


def _messages_of(prompt: Prompt) -> tuple[Message, ...]:
    """The messages that begin a turn: tool results are a message of their own, before the others."""
    if isinstance(prompt, Message):
        return (prompt,)
    parts = (ContentPartText(text=prompt),) if isinstance(prompt, str) else tuple(prompt)
    results = tuple(part for part in parts if isinstance(part, ContentPartToolResult))
    others = tuple(part for part in parts if not isinstance(part, ContentPartToolResult))
    messages = (Message(role=Role.TOOL, content=results), Message(role=Role.USER, content=others))
    return tuple(message for message in messages if message.content) or messages[1:]


def _result(turn: TurnAccumulator, delta: TurnDelta, *, last: bool = False) -> ChatResult[str]:
    return ChatResult(
        output=delta.output,
        messages=delta.messages,
        reasoning=delta.reasoning,
        finish_reason=turn.finish_reason if last else None,
        usage=turn.total_usage if last else None,
        metadata=delta.metadata,
        id=turn.id,
        files=delta.files,
        links=delta.links,
        open_calls=open_calls(turn) if last else (),
        replaces=delta.replaces,
    )


def _with_output(result: ChatResult[str], output: object) -> ChatResult[Any]:
    fields = {name: getattr(result, name) for name in ChatResult.__slots__ if name != "output"}
    return ChatResult(output=output, **fields)

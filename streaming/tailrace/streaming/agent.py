"""An agent: a model that is asked, runs the tools it calls, and is asked again, until it has answered.

::

    async with Agent("openai:gpt-5-mini", tools=[get_weather], instructions="Be brief.") as agent:
        first = await agent.run("What is the weather in Paris?")
        second = await agent.run("And tomorrow?", history=first.messages)

Nothing is hidden: what was said before is what ``history`` holds, and a result holds what is new, all messages with tool
calls and results among it. A round is one request with its answer and the results of the tools that this called, which
stand in one message.
"""

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing
from functools import partial
from types import UnionType
from typing import Any, Generic, Self, cast

from typing_extensions import TypeVar

from tailrace.streaming.observing import RUN_OBSERVER, AnswerWatch
from tailrace.streaming.output import OutputReader
from tailrace.streaming.run import (
    AgentError,
    BrokenRunError,
    ChatResult,
    Received,
    ResponseEnded,
    RoundEnded,
    Step,
    StepTaker,
    ToolEnded,
)
from tailrace.streaming.tools import (
    DEFAULT_CONCURRENCY,
    DEFAULT_TIMEOUT,
    Tool,
    ToolFunction,
    ToolRunner,
    Toolset,
    as_tool,
)
from tailrace.streaming.trimming import HistoryPolicy, keep_all
from tailrace.streaming.turn import TurnAccumulator, TurnDelta
from tailrace.wrappers import (
    ChunkWrapper,
    ConfigurationError,
    ContentPart,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    FinishReason,
    History,
    Message,
    ProtocolError,
    Role,
    UpstreamError,
)
from tailrace.wrappers.model import ArrivingBatches, ChunkBatches, Model
from tailrace.wrappers.options import NO_OPTIONS, RequestOptions
from tailrace.wrappers.providers import create_model
from tailrace.wrappers.tool_ids import unmatched_tools

T = TypeVar("T", default=str)

DEFAULT_MAX_ROUNDS = 50
"""Requests that one turn may take."""

_REFUSED = frozenset({FinishReason.CONTENT_FILTER, FinishReason.RECITATION})
_NO_NAMES: frozenset[str] = frozenset()
_FORCED = ("required", "tool")  # choices that would have the model call tools for ever

Prompt = str | Message | Sequence[ContentPart]
"""What the user says: text, parts (the results of tools that the caller ran among them), or a whole message."""


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
        history_policy: What of a long history is sent, see `tailrace.streaming.trimming`.
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
        """Answer a prompt; each result holds what is new since the one before, and none of them nothing.

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

    async def steps(
        self,
        turn: TurnAccumulator,
        *,
        options: RequestOptions = NO_OPTIONS,
        runner: ToolRunner | None = None,
        task_id: str = "",
        context_id: str = "",
        taker: StepTaker | None = None,
    ) -> AsyncGenerator[Step]:
        """Run a turn to its end, step by step: what `run` and `run_stream` are made of, and what serves an agent.

        To be closed (``aclosing``) in the task in which it was begun. A provider's failure is no exception here, but
        the turn's ``error``; calls that somebody else is to run are its ``unanswered_calls``.

        Args:
            turn: What was said; folds what comes.
            options: What the request asks for beyond what every request does.
            runner: The tools; those of the agent when None.
            task_id: For the tools' `ToolContext`.
            context_id: For the tools' `ToolContext`.
            taker: Takes usual steps, which are text, where they arrive and while the next one is waited for. All others
                come from the generator; None: all do.

        Raises:
            AgentError: The turn has taken all rounds that it may.
            ConfigurationError: As `run_stream`.
            ProtocolError: The provider cannot be told something of the conversation or the options.
        """
        runner = runner or self._connected_runner()
        theirs = self._callers_tools(options, runner)
        asked = merged_options(self._options, options, runner)
        observer = RUN_OBSERVER.get()
        may_repeat = False  # an answer that says nothing, since it follows on tools
        for number in range(1, self._max_rounds + 1):
            with observer.answering(self.model, asked, turn) as watch:
                try:
                    async with watch.sent(self.model.stream(self._to_send(turn), asked)) as batches:
                        self._offer(batches, turn, watch, taker)
                        async for batch in batches:
                            if not watch.chunks:
                                watch.first_chunk()
                            watch.chunks += len(batch)
                            for chunks in (batch,) if self._merge_reads else zip(batch):
                                changes = turn.add_all(chunks)
                                if changes:
                                    yield Received(changes)
                            if turn.error is not None:
                                break
                            batch = chunks = changes = ()  # not held while the next is waited for, or taken
                except UpstreamError as error:
                    turn.fail_response(error.with_traceback(None))  # whose frames hold the turn
                said = len(turn.messages)
                last = not may_repeat or number == self._max_rounds
                keep_empty = last or turn.finish_reason in (*_REFUSED, FinishReason.LENGTH)
                held_back = turn.end_response(keep_empty=keep_empty)
            yield ResponseEnded(held_back)
            if turn.error is not None or turn.finish_reason in _REFUSED or ends_in_half_a_call(turn):
                return
            if may_repeat and len(turn.messages) == said:
                may_repeat = False
                continue
            calls = turn.unanswered_calls
            if not calls:
                return
            # Where nobody told the model of a tool here, whoever made the model did, and means the caller to run it.
            known = bool(runner.definitions or theirs)
            ours = [call for call in calls if known and call.name not in theirs]
            if ours and number == self._max_rounds:
                break
            if ours:
                running = runner.run(ours, others=theirs, task_id=task_id, context_id=context_id)
                async with aclosing(_results(turn, ours, running)) as ended:
                    async for result in ended:
                        yield ToolEnded(result)
                yield RoundEnded()
            if turn.unanswered_calls:
                return
            may_repeat = True
            asked = _unforced(asked)
        raise AgentError(
            f"the model asked for tools in all {self._max_rounds} rounds that a turn may take", turn.messages
        )

    def _offer(
        self, batches: ChunkBatches, turn: TurnAccumulator, watch: AnswerWatch, taker: StepTaker | None
    ) -> None:
        """Have chunks of text taken where they arrive, where that can be."""
        if taker is not None and isinstance(batches, ArrivingBatches):
            batches.take_at_once(partial(self._take, turn, watch, taker))

    def _take(
        self,
        turn: TurnAccumulator,
        watch: AnswerWatch,
        taker: StepTaker,
        chunks: Sequence[ChunkWrapper[Any]],
    ) -> bool:
        """What `steps` does with chunks of text, where they arrive."""
        if not (watch.chunks and turn.error is None and taker.ready):
            return False
        for chunk in chunks:
            if not chunk.plain:
                return False
        watch.chunks += len(chunks)
        for together in (chunks,) if self._merge_reads else zip(chunks):
            changes = turn.add_all(together)
            if changes:
                taker.take(Received(changes))
        return True

    def has_tool(self, name: str) -> bool:
        """Whether the agent runs a tool of that name itself, as far as its tools are connected."""
        return self._runner is not None and self._runner.knows(name)

    def begin(self, history: History, *said: Message) -> TurnAccumulator:
        """What folds a turn of this agent, for `steps`.

        Args:
            history: What was said before, or all that was.
            said: What begins the turn, to be the first of its new messages.
        """
        return TurnAccumulator(*said, history=history, think_tags=self._think_tags)

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
        """The names of the tools that somebody else is to run."""
        if not (self._options.tools or options.tools):
            return _NO_NAMES
        theirs = frozenset(each.name for each in (*self._options.tools, *options.tools))
        for name in theirs:
            if runner.knows(name):
                raise ConfigurationError(
                    f"the agent has a tool named {name!r} itself: give yours another name"
                )
        return theirs

    def _to_send(self, turn: TurnAccumulator) -> History:
        """What the model is given of a conversation."""
        history = turn.history
        system = "\n\n".join(filter(None, (self._instructions, history.system_message)))
        return self._policy(history.model_copy(update={"system_message": system or None}))

    def _turn(self, prompt: Prompt, history: History | Iterable[Message]) -> TurnAccumulator:
        said = _said(prompt)
        before = history if isinstance(history, History) else History(conversation=tuple(history))
        turn = self.begin(before, *said)
        if any(message.tool_results for message in said):
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
    """What every request asks for, with what this one does over it; tools add up: the agent's own, then the others."""
    if given is NO_OPTIONS and not runner.definitions:
        return always
    said = {name: getattr(given, name) for name in given.model_fields_set}
    return always.model_copy(update={**said, "tools": (*runner.definitions, *always.tools, *given.tools)})


async def _results(
    turn: TurnAccumulator,
    calls: Sequence[ContentPartToolCall],
    running: AsyncGenerator[ContentPartToolResult],
) -> AsyncGenerator[ContentPartToolResult]:
    """The results of tools as they end; when all have, the turn has them in the order of the calls."""
    results: dict[str, ContentPartToolResult] = {}
    async with aclosing(running):
        async for result in running:
            results[result.id] = result
            yield result
    turn.add_results(*(results[call.id] for call in calls))


def _unforced(options: RequestOptions) -> RequestOptions:
    """The options of a further round: a call that was forced is not forced again."""
    if options.tool_choice is not None and options.tool_choice.mode in _FORCED:
        return options.model_copy(update={"tool_choice": None})
    return options


def ends_in_half_a_call(turn: TurnAccumulator) -> bool:
    """Whether the last answer reached its length limit in the middle of a tool call, which nobody can run then."""
    return turn.finish_reason is FinishReason.LENGTH and any(
        call.arguments_error is not None for call in turn.unanswered_calls
    )


def open_calls(turn: TurnAccumulator) -> tuple[ContentPartToolCall, ...]:
    """The calls that somebody else is to run, once `Agent.steps` is through; none of an answer that was held back."""
    return () if turn.finish_reason in _REFUSED else turn.unanswered_calls


def _said(prompt: Prompt) -> tuple[Message, ...]:
    """The messages that begin a turn: the results of tools are one of their own, before what else is said."""
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

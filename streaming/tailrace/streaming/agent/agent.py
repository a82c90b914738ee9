"""An agent: a model that calls tools until its response calls no more tools.

::

    async with Agent("openai:gpt-5-mini", tools=[get_weather], instructions="Be brief.") as agent:
        first = await agent.run("What is the weather in Paris?")
        second = await agent.run("And tomorrow?", history=first.messages)

An agent does not store the conversation. ``history`` contains the earlier messages, and a result contains the new ones.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing
from types import UnionType
from typing import Generic, Self, cast

import anyio
import anyio.lowlevel
from typing_extensions import TypeVar

from tailrace.streaming.agent.continuation import (
    CircuitBreaker,
    ContinuationPolicy,
    InterruptedResponse,
    name_of,
)
from tailrace.streaming.agent.driver import StepView, ToolCallContext, TurnDriver
from tailrace.streaming.agent.events import (
    AgentError,
    ChatResult,
    ResponseBegun,
    Step,
    ToolEnded,
)
from tailrace.streaming.agent.results import check_completeness, output_error, result_of, with_output
from tailrace.streaming.agent.trimming import HistoryPolicy, keep_all
from tailrace.streaming.agent.turn import (
    AgentTurn,
    DecidedCalls,
    TurnView,
)
from tailrace.streaming.schemas.structured_output import OutputReader
from tailrace.streaming.tools.approvals import ApprovalPolicy, ApprovalRequest
from tailrace.streaming.tools.tools import (
    DEFAULT_CONCURRENCY,
    DEFAULT_TIMEOUT,
    Tool,
    ToolFunction,
    ToolRunner,
    Toolset,
    as_tool,
)
from tailrace.streaming.turn_accumulator import TurnAccumulator
from tailrace.wrappers import (
    ConfigurationError,
    ContentPart,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    History,
    Message,
    ProtocolError,
    Role,
)
from tailrace.wrappers.conversion.tool_matching import unmatched_tools
from tailrace.wrappers.model import Model
from tailrace.wrappers.providers import create_model
from tailrace.wrappers.request_options import NO_OPTIONS, RequestOptions

T = TypeVar("T", default=str)
S = TypeVar("S")

DEFAULT_MAX_ROUNDS = 50
"""Default maximum number of rounds in one turn."""

Prompt = str | Message | Sequence[ContentPart]
"""The user's message: a text, a message, or parts, which may include results of tools that the caller ran."""


class Agent(Generic[T]):
    """A model with tools.

    One agent supports any number of concurrent runs. ``async with`` connects the toolsets (`Toolset`), and at the end closes the
    connections of the toolsets and models. Without ``async with``, each `run` connects the toolsets itself.

    Args:
        model: ``provider:model``, with the API key in an environment variable; or a model object, which the agent closes.
        tools: Functions, tools and toolsets.
        instructions: The system message of every request, before the system message of the history. None for none.
        output_type: The type of the structured output (`ChatResult.output`): any type that pydantic supports. None or ``str``
            for text. For a union, annotate the variable: ``agent: Agent[A | B] = Agent(…, output_type=A | B)``.
        options: Options of every request. The options of a run override them. A tool choice that forces a call applies only
            until the agent has run tools in the turn.
        max_rounds: Maximum number of rounds in one turn.
        tool_timeout: Timeout in seconds of tools that do not set their own timeout; ``math.inf`` for no limit.
        tool_concurrency: Maximum number of tools that run concurrently in one round.
        history_policy: Shortens a long history; see `tailrace.streaming.agent.trimming`.
        think_tags: True to separate reasoning in ``<think>`` tags at the start of a response from its text.
        merge_reads: True to combine all content that arrives with one network read into one step.
        continuation: Limits of the continuation of a response that breaks off; see `tailrace.streaming.agent.continuation`.
        fallbacks: Models that are requested in this order if ``model`` fails. The agent closes them.
        approvals: Selects the calls that run only after an approval; None for none. `run` returns such calls in
            `ChatResult.open_calls`. The server asks its caller for the approval (``docs/approvals.md``).

    Attributes:
        reader: Parser of the structured output; None for text.

    Raises:
        ConfigurationError: The model is unknown or its API key is missing, two tools have the same name, the output
            type has no JSON schema, or a limit is less than 1.
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
        continuation: ContinuationPolicy = ContinuationPolicy(),  # noqa: B008 — immutable
        fallbacks: Iterable[str | Model] = (),
        approvals: ApprovalPolicy | None = None,
    ) -> None:
        if max_rounds < 1:
            raise ConfigurationError(f"max_rounds is {max_rounds}; the minimum is 1")
        self._models = [
            (create_model(each) if isinstance(each, str) else each, CircuitBreaker())
            for each in (model, *fallbacks)
        ]
        self.model = self._models[0][0]
        self._continuation = continuation
        self._instructions = instructions
        self.reader = None if output_type in (None, str) else OutputReader.of_type(output_type)
        if self.reader is not None:
            options = options.model_copy(update={"output": self.reader.format})
        self._options = options
        self._max_rounds = max_rounds
        self._timeout = tool_timeout
        self._approvals = approvals or ApprovalPolicy()
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
        """Connect the toolsets.

        Raises:
            ConfigurationError: A package or program that a toolset needs is missing, or two tools have the same name.
            UpstreamError: The server of a toolset cannot be reached.
        """
        async with AsyncExitStack() as stack:
            if self._toolsets:
                self._runner = await self._connect(stack)
            self._connections = stack.pop_all()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        """Disconnect the toolsets and close the models."""
        if self._toolsets:
            self._runner = None
        async with AsyncExitStack() as stack:
            for model, _ in self._models:
                stack.push_async_callback(model.aclose)
            await self._connections.aclose()

    async def run(
        self,
        prompt: Prompt,
        *,
        history: History | Iterable[Message] = (),
        options: RequestOptions = NO_OPTIONS,
    ) -> ChatResult[T]:
        """Run a turn and return its complete result. A cancellation stops the request and the tools.

        Args:
            prompt: The user's message, which becomes the first of the new messages.
            history: The earlier messages.
            options: Options of this turn. The caller runs the tools in these options. A call of such a tool ends the run; see
                `ChatResult.open_calls`.

        Raises:
            BrokenRunError: The provider failed, or the response broke off.
            AgentError: The turn exceeded ``max_rounds``, a response reached its length limit within a tool call, or the
                output does not match ``output_type``. Its attribute ``messages`` contains the new messages of the run.
            ConfigurationError: A tool of the caller has the same name as a tool of the agent, or a toolset needs a missing
                package or program.
            UpstreamError: The server of a toolset cannot be reached.
            ProtocolError: A tool result in the prompt matches no open call of the history, or the provider does not support a
                part of the conversation or an option.
        """
        turn = self._turn(prompt, history)
        async with AsyncExitStack() as stack:
            runner = self._runner or await self._connect(stack)
            steps = await stack.enter_async_context(
                aclosing(self.steps(turn, options=options, runner=runner))
            )
            async for _ in steps:
                pass
        check_completeness(turn)
        result = result_of(turn, turn.pop_delta(), last=True)
        if self.reader is None or result.open_calls:
            return cast("ChatResult[T]", result)
        try:
            output = self.parse_output(turn.last_text, turn.messages)
        except AgentError as error:
            raise output_error(turn, error) from None
        return cast("ChatResult[T]", with_output(result, output))

    async def run_stream(
        self,
        prompt: Prompt,
        *,
        history: History | Iterable[Message] = (),
        options: RequestOptions = NO_OPTIONS,
    ) -> AsyncGenerator[ChatResult[str]]:
        """Run a turn. Yield results with the new content since the previous result. Only the last result may have no new content.

        Text is yielded as it arrives, even if the agent has an ``output_type``: parse the text of the last message with
        `parse_output`. Use ``aclosing``, so that the request stops immediately if you leave the loop. A cancellation stops the
        request and the tools.

        Args:
            prompt: See `run`.
            history: See `run`.
            options: See `run`.

        Raises:
            BrokenRunError: As for `run`, after all content that arrived has been yielded.
            AgentError: As for `run`, except that ``output_type`` is not checked.
            ConfigurationError: As for `run`; or the agent's toolsets are not connected (use ``async with``).
            ProtocolError: As for `run`.
        """
        turn = self._turn(prompt, history)
        async with aclosing(self.steps(turn, options=options)) as steps:
            async for step in steps:
                # A caller that leaves the loop here without closing the generator would keep the cancel scope of the tools open.
                if not isinstance(step, ResponseBegun | ToolEnded):
                    delta = turn.pop_delta()
                    if delta:
                        yield result_of(turn, delta)
        check_completeness(turn)
        yield result_of(turn, turn.pop_delta(), last=True)

    def steps(
        self,
        accumulator: TurnAccumulator,
        *,
        options: RequestOptions = NO_OPTIONS,
        runner: ToolRunner | None = None,
        task_id: str = "",
        context_id: str = "",
        external_context_id: str = "",
    ) -> AsyncGenerator[Step]:
        """Run a turn and yield its steps, like `drive` with a view that raises errors."""
        return self.drive(
            accumulator,
            StepView(),
            options=options,
            runner=runner,
            task_id=task_id,
            context_id=context_id,
            external_context_id=external_context_id,
        )

    def drive(
        self,
        accumulator: TurnAccumulator,
        view: TurnView[S],
        *,
        options: RequestOptions = NO_OPTIONS,
        runner: ToolRunner | None = None,
        task_id: str = "",
        context_id: str = "",
        external_context_id: str = "",
        interrupted: InterruptedResponse | None = None,
        decided: DecidedCalls | None = None,
        wait_until_persisted: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint,
    ) -> AsyncGenerator[S]:
        """Run a turn (`TurnDriver`) and yield the items of a view.

        Close the generator (``aclosing``) in the asyncio task that started it. Closing the generator, or cancelling the asyncio
        task, stops the request and the tools. A failure of the provider is not raised: see `TurnAccumulator.error`. The calls
        that the caller must run are in `TurnAccumulator.calls_without_result`.

        Args:
            accumulator: The accumulator of the turn, which contains the conversation. The method adds responses and tool
                results.
            view: Converts each step into an item.
            options: Options of this turn. They override the options of the agent.
            runner: The tools; None for the tools of the agent.
            task_id: The task in the `ToolContext`; empty outside of a server.
            context_id: The conversation in the `ToolContext`; empty outside of a server.
            external_context_id: The id of the conversation for other systems; see `ToolContext`.
            interrupted: A response of which another process published only a part. The run continues it first. None if there
                is none.
            decided: Calls of the history whose approvals have been decided. The approved calls run before the first request.
                None if there are none.
            wait_until_persisted: Function that returns after all yielded items have been persisted. Approved calls run only afterwards.

        Raises:
            AgentError: The turn exceeded ``max_rounds``, or the interrupted response must not be requested again (see
                `ResponseAttempts.first`). Only raised if the view raises it.
            ConfigurationError: As for `run_stream`.
            ProtocolError: The provider does not support a part of the conversation or an option.
        """
        runner = runner or self._connected_runner()
        callers_tools = self._callers_tools(options, runner)
        turn = AgentTurn(
            accumulator,
            options=merged_options(self._options, options, runner),
            prepare=self._trimmed,
            callers_tools=callers_tools,
            has_tools=bool(runner.definitions),
            max_rounds=self._max_rounds,
            needs_approval=runner.needs_approval,
            decided=decided,
        )
        driver = TurnDriver(
            turn,
            view,
            runner=runner,
            context=ToolCallContext(callers_tools, task_id, context_id, external_context_id),
            models=self._models,
            continuation=self._continuation,
            merge_reads=self._merge_reads,
            wait_until_persisted=wait_until_persisted,
        )
        return driver.run(interrupted, decided)

    async def cancel_interrupted(self, interrupted: InterruptedResponse) -> None:
        """Cancel an interrupted response at the provider, if the provider stores it (`Model.release`)."""
        for model, _ in self._models:
            if name_of(model) == interrupted.model:
                await model.release(interrupted.stored_id)
                return

    def has_tool(self, name: str) -> bool:
        """Return True if the agent has a tool with this name. An agent with toolsets must be connected."""
        return self._runner is not None and self._runner.knows(name)

    def is_idempotent(self, call: ContentPartToolCall) -> bool:
        """Return True if the tool of a call is declared as idempotent (`Tool.idempotent`)."""
        return self._runner is not None and self._runner.is_idempotent(call.name)

    def approval_request(self, call: ContentPartToolCall) -> ApprovalRequest | None:
        """Return the request for the approval of a call; None if the call requires no approval."""
        if self._runner is None or not self._runner.needs_approval(call):
            return None
        return ApprovalRequest.of(call, self._approvals.lifetime)

    def repetition_request(self, call: ContentPartToolCall, reason: str) -> ApprovalRequest | None:
        """Return the request for an approval to repeat a call whose result was lost; None if the call cannot run."""
        if not self.has_tool(call.name):
            return None
        try:
            return ApprovalRequest.of(call, self._approvals.lifetime, reason)
        except ValueError:  # the arguments have no canonical JSON form
            return None

    def create_accumulator(
        self, history: History, *messages: Message, collect_output: bool = True
    ) -> TurnAccumulator:
        """Create the accumulator of a turn, for `steps` and `drive`. See `TurnAccumulator`.

        Args:
            history: The conversation before ``messages``.
            messages: The first new messages of the turn.
            collect_output: See `TurnAccumulator`.
        """
        return TurnAccumulator(
            *messages, history=history, think_tags=self._think_tags, collect_output=collect_output
        )

    def begin(self, history: History, *messages: Message) -> TurnAccumulator:
        """Deprecated name of `create_accumulator`; to be removed in 0.3."""
        return self.create_accumulator(history, *messages)

    def parse_output(self, text: str, messages: tuple[Message, ...] = ()) -> T:
        """Parse the text of a response as the ``output_type``.

        Args:
            text: The complete text of a response.
            messages: The attribute ``messages`` of an error.

        Raises:
            AgentError: The text does not match ``output_type``.
        """
        if self.reader is None:
            return cast("T", text)
        try:
            return cast("T", self.reader.read(text))
        except ValueError as error:
            raise AgentError(str(error), messages) from None

    def _connected_runner(self) -> ToolRunner:
        if self._runner is None:
            raise ConfigurationError("the agent's toolsets are not connected: use the agent in `async with`")
        return self._runner

    def _callers_tools(self, options: RequestOptions, runner: ToolRunner) -> frozenset[str]:
        callers_tools = self._options.tool_names | options.tool_names
        for name in callers_tools:
            if runner.knows(name):
                raise ConfigurationError(f"the agent already has a tool named {name!r}; choose another name")
        return callers_tools

    def _trimmed(self, history: History) -> History:
        system = "\n\n".join(filter(None, (self._instructions, history.system_message))) or None
        if system != history.system_message:
            history = history.model_copy(update={"system_message": system})
        return self._policy(history)

    def _turn(self, prompt: Prompt, history: History | Iterable[Message]) -> TurnAccumulator:
        messages = _messages_of(prompt)
        before = history if isinstance(history, History) else History(conversation=tuple(history))
        turn = self.create_accumulator(before, *messages)
        if any(message.tool_results for message in messages):
            for result in unmatched_tools(turn.history).results:
                if result.message >= len(before.conversation):
                    raise ProtocolError(f"the tool result {result.id!r} matches no open call of the history")
        return turn

    def _runner_of(self, tools: Iterable[Tool]) -> ToolRunner:
        return ToolRunner(
            tools, timeout=self._timeout, concurrency=self._concurrency, approvals=self._approvals
        )

    async def _connect(self, stack: AsyncExitStack) -> ToolRunner:
        tools = list(self._tools)
        for toolset in self._toolsets:
            tools += await stack.enter_async_context(toolset.connected())
        return self._runner_of(tools)


def merged_options(
    always: RequestOptions, request_options: RequestOptions, runner: ToolRunner
) -> RequestOptions:
    """Override the options of every request by the options of one request. All tools are combined."""
    if request_options is NO_OPTIONS and not runner.definitions:
        return always
    explicit = {name: getattr(request_options, name) for name in request_options.model_fields_set}
    return always.model_copy(
        update={**explicit, "tools": (*runner.definitions, *always.tools, *request_options.tools)}
    )


def _messages_of(prompt: Prompt) -> tuple[Message, ...]:
    """Return the messages that begin a turn. Tool results are a separate message before the other parts."""
    if isinstance(prompt, Message):
        return (prompt,)
    parts = (ContentPartText(text=prompt),) if isinstance(prompt, str) else tuple(prompt)
    results = tuple(part for part in parts if isinstance(part, ContentPartToolResult))
    others = tuple(part for part in parts if not isinstance(part, ContentPartToolResult))
    messages = (Message(role=Role.TOOL, content=results), Message(role=Role.USER, content=others))
    return tuple(message for message in messages if message.content) or messages[1:]

"""Tools: what an agent can do besides answering, and running what the model calls.

A tool is any `Tool`; a plain Python function, sync or async, becomes one by its signature: type hints make the JSON
schema (by pydantic), the docstring its description, and what that says of an argument (in Google's, NumPy's or Sphinx' style) the
argument's::

    async def get_weather(city: str, unit: Literal["C", "F"] = "C") -> dict[str, Any]:
        "The weather of a city now."
        ...

Whatever goes wrong with a call that a model made (no such tool, arguments that do not fit, an exception, time that ran out)
is a result that says so: the model reads it and can do better. Only being cancelled is not.
"""

import asyncio
import functools
import inspect
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Union, cast, get_args, get_origin, get_type_hints

import anyio
import anyio.to_thread
import docstring_parser
import pydantic
import pydantic_core
from pydantic.fields import FieldInfo

from tailrace.streaming.observing import RUN_OBSERVER, CallWatch
from tailrace.streaming.output import PlainSchema
from tailrace.wrappers import ConfigurationError, ContentPartToolCall, ContentPartToolResult
from tailrace.wrappers.messages import json_value
from tailrace.wrappers.options import ToolDefinition

logger = logging.getLogger("tailrace.streaming")

DEFAULT_TIMEOUT = 60.0
"""Seconds that a tool may take."""

DEFAULT_CONCURRENCY = 8
"""Tools of one round that run at once."""

ToolFunction = Callable[..., Any]


class ToolError(Exception):
    """Raised by a tool to say something to the model: its text is the result, marked as an error, and is not logged."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What is known of a call beside its arguments.

    A function gets it as the parameter that is annotated with this class (or with this class or None), if there is one; the
    model knows nothing of it.

    Attributes:
        call: The call, as the model made it.
        task_id: The task that it belongs to; empty without a server.
        context_id: The conversation that it belongs to; empty without a server.
    """

    call: ContentPartToolCall
    task_id: str = ""
    context_id: str = ""


class Tool(ABC):
    """Something that the model may call.

    Attributes:
        definition: What the model is told of it.
        timeout: Seconds that a call may take, ``math.inf`` for no limit; None for the agent's own.
    """

    definition: ToolDefinition
    timeout: float | None = None

    @abstractmethod
    async def call(self, arguments: dict[str, Any], context: ToolContext) -> object:
        """Do it.

        Args:
            arguments: As the model gave them, a JSON object that nobody held against the schema.
            context: What else is known of the call.

        Returns:
            The answer: text, or anything that pydantic can make JSON of; or a `ContentPartToolResult`, whose id
            does not matter.

        Raises:
            ToolError: The model is to know of what went wrong; any other exception counts the same, and is logged.
        """


class Toolset(ABC):
    """Tools that come and go together, behind a connection that has to be opened (a server of the Model Context Protocol)."""

    @abstractmethod
    def connected(self) -> AbstractAsyncContextManager[Sequence[Tool]]:
        """The tools, as long as the block lasts.

        Raises:
            ConfigurationError: What it needs is not installed or cannot be started.
            UpstreamError: It cannot be reached, or does not answer.
        """


class FunctionTool(Tool):
    """A Python function as a tool. One that is not async runs in a thread; when its time is up the thread is left to itself.

    Args:
        function: Takes what its signature says, all of which can be given by name; may be async.
        name: What the model calls it by; the function's own when empty.
        description: What the model is told; the docstring's, without its sections, when empty.
        timeout: Seconds that a call may take; None for the agent's own limit.
        strict: See `ToolDefinition`.

    Raises:
        ConfigurationError: The signature cannot be told to a model.
    """

    def __init__(
        self,
        function: ToolFunction,
        *,
        name: str = "",
        description: str = "",
        timeout: float | None = None,
        strict: bool | None = None,
    ) -> None:
        self._function = function
        self._is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 — it is asked whether calling it gives a coroutine
        )
        self.timeout = timeout
        inner = _without_partial(function)
        given = name or getattr(inner, "__name__", type(inner).__name__)
        words = docstring_parser.parse(inspect.getdoc(inner) or "")
        self._context_name, fields = _fields(function, given, words)
        config = pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=True)
        try:
            make = cast("Any", pydantic.create_model)  # its stubs know no fields that are made at run time
            self._arguments: type[pydantic.BaseModel] = make(given, __config__=config, **fields)
            schema = self._arguments.model_json_schema(schema_generator=PlainSchema)
        except pydantic.errors.PydanticUserError as error:
            raise ConfigurationError(f"tool {given}: no JSON schema can be made: {error.message}") from error
        schema.pop("title", None)
        schema.setdefault("properties", {})
        told = description or "\n\n".join(filter(None, (words.short_description, words.long_description)))
        self.definition = ToolDefinition(name=given, description=told, parameters=schema, strict=strict)

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> object:
        """Call the function; see `Tool.call`."""
        try:
            # As JSON: what is a date, a tuple or bytes to the function is text or a list there.
            read = self._arguments.model_validate_json(json.dumps(arguments))
        except pydantic.ValidationError as error:
            raise ToolError(_why(error)) from None
        fields = type(read).model_fields.items()
        given = {info.alias or field: getattr(read, field) for field, info in fields}
        if self._context_name:
            given[self._context_name] = context
        if self._is_async:
            return await self._function(**given)
        result = await anyio.to_thread.run_sync(lambda: self._function(**given), abandon_on_cancel=True)
        return await cast("Awaitable[object]", result) if inspect.isawaitable(result) else result


def tool(
    function: ToolFunction | None = None,
    *,
    name: str = "",
    description: str = "",
    timeout: float | None = None,
    strict: bool | None = None,
) -> Any:
    """Decorate a function as a tool: ``@tool`` or ``@tool(name=…, timeout=…)``; see `FunctionTool`."""

    def make(given: ToolFunction) -> FunctionTool:
        return FunctionTool(given, name=name, description=description, timeout=timeout, strict=strict)

    return make if function is None else make(function)


class ToolRunner:
    """Runs the calls of a round: all at once, up to a limit, each within its time.

    Args:
        tools: The tools, functions among them; of two that have the same name neither is to be guessed.
        timeout: Seconds that a tool may take which does not say so itself.
        concurrency: How many calls of one round run at once.

    Attributes:
        definitions: What the model is told.

    Raises:
        ConfigurationError: Two tools have the same name, something is no tool, or no tool may run at all.
    """

    def __init__(
        self,
        tools: Iterable[Tool | ToolFunction] = (),
        *,
        timeout: float = DEFAULT_TIMEOUT,
        concurrency: int = DEFAULT_CONCURRENCY,
    ) -> None:
        if concurrency < 1:
            raise ConfigurationError(f"tools cannot run {concurrency} at once: give 1 or more")
        self._timeout = timeout
        self._concurrency = concurrency
        self._tools: dict[str, Tool] = {}
        for each in tools:
            made = as_tool(each)
            if made.definition.name in self._tools:
                raise ConfigurationError(f"two tools have the name {made.definition.name!r}")
            self._tools[made.definition.name] = made
        self.definitions = tuple(each.definition for each in self._tools.values())

    def knows(self, name: str) -> bool:
        """Whether there is a tool of that name."""
        return name in self._tools

    async def run(
        self,
        calls: Sequence[ContentPartToolCall],
        *,
        others: Iterable[str] = (),
        task_id: str = "",
        context_id: str = "",
    ) -> AsyncGenerator[ContentPartToolResult]:
        """Run calls; give their results as they come, one for each.

        To be closed (``aclosing``) in the task in which it was begun: what still runs then is cancelled.

        Args:
            calls: To be run; those of tools that do not exist are answered by an error.
            others: Names of further tools that the model was told of, to be named to it in such an error.
            task_id: For the `ToolContext`.
            context_id: For the `ToolContext`.
        """
        observer = RUN_OBSERVER.get()
        limit = anyio.CapacityLimiter(self._concurrency)
        send, receive = anyio.create_memory_object_stream[ContentPartToolResult](len(calls))

        async def run_one(call: ContentPartToolCall) -> None:
            async with limit:
                # What does not exist is not run: the observer is told of known tools alone.
                with observer.calling(call) if self.knows(call.name) else CallWatch() as watch:
                    watch.result = await self._result(call, ToolContext(call, task_id, context_id), others)
                send.send_nowait(watch.result)

        with send, receive:
            async with anyio.create_task_group() as group:
                for call in calls:
                    group.start_soon(run_one, call, name=f"tool {call.name}")
                try:
                    for _ in calls:
                        yield await receive.receive()
                except GeneratorExit:
                    # Ended here: a group would pass it on inside an exception group, in place of whatever closed this.
                    group.cancel_scope.cancel()

    async def _result(
        self, call: ContentPartToolCall, context: ToolContext, others: Iterable[str]
    ) -> ContentPartToolResult:
        try:
            output = await self._call(call, context, others)
            if isinstance(output, ContentPartToolResult):
                return output.model_copy(update={"id": call.id, "name": call.name})
            return ContentPartToolResult(id=call.id, name=call.name, output=_as_json(output))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Nobody cancelled the call: something that the tool waited for was cancelled under its hands.
            logger.exception("the tool %s waited for something that was cancelled", call.name)
            return _failed(call, "what the tool waited for was cancelled")
        except Exception as raised:
            error = _unwrapped(raised)
            if isinstance(error, ToolError):
                return _failed(call, str(error) or "the tool failed")
            logger.exception("the tool %s failed", call.name)
            return _failed(call, f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)

    async def _call(self, call: ContentPartToolCall, context: ToolContext, others: Iterable[str]) -> object:
        found = self._tools.get(call.name)
        if found is None:
            known = ", ".join(sorted((*self._tools, *others))) or "none"
            raise ToolError(f"there is no tool named {call.name!r}; the tools are: {known}")
        arguments: dict[str, Any] = dict(call.arguments)
        if call.kind == "custom":
            arguments = {"input": call.arguments_text or ""}
        elif call.arguments_error is not None or (call.arguments_text or "null").strip() != "null":
            why = f" ({call.arguments_error})" if call.arguments_error else ""
            raise ToolError(f"the arguments are no JSON object{why}; call the tool again with one")
        seconds = self._timeout if found.timeout is None else found.timeout
        with anyio.move_on_after(seconds) as scope:
            return await found.call(arguments, context)
        if scope.cancelled_caught:
            raise ToolError(f"the tool took longer than the {seconds:g} seconds it may")
        raise AssertionError("the block returns, raises, or is cancelled by its scope")


def as_tool(source: Tool | ToolFunction) -> Tool:
    """A tool as it is; a function as a `FunctionTool`.

    Raises:
        ConfigurationError: It is neither.
    """
    if isinstance(source, Tool):
        return source
    if callable(source):
        return FunctionTool(source)
    raise ConfigurationError(f"{source!r} is no tool and no function")


def _fields(
    function: ToolFunction, name: str, words: docstring_parser.Docstring
) -> tuple[str, Mapping[str, tuple[object, object]]]:
    """The parameter that takes the context, if there is one, and the others as the fields of a model."""
    inner = _without_partial(function)
    try:
        target = inner if inspect.isroutine(inner) else inner.__call__
        hints = get_type_hints(target, include_extras=True)
        parameters = inspect.signature(function).parameters
    except (NameError, TypeError, ValueError) as error:
        raise ConfigurationError(f"tool {name}: the signature cannot be read: {error}") from error
    described = {each.arg_name: each.description or "" for each in words.params}
    context_name, fields = "", dict[str, tuple[object, object]]()
    for key, parameter in parameters.items():
        hint: object = hints.get(key, Any)
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ConfigurationError(
                f"tool {name}: the parameter {parameter} cannot be given by name, as a model gives them"
            )
        if _is_context(hint):
            context_name = key
            continue
        # Under names of our own: a parameter may be called what pydantic has a use for.
        ours: dict[str, Any] = {"alias": key}
        if described.get(key) and not FieldInfo.from_annotation(cast("Any", hint)).description:
            ours["description"] = described[key]
        default: object = ... if parameter.default is parameter.empty else parameter.default
        fields[f"field_{len(fields)}"] = (Annotated[hint, pydantic.Field(**ours)], default)
    return context_name, fields


def _is_context(hint: object) -> bool:
    """Whether a parameter takes the context: it may do without one, where its function is called by others too."""
    if get_origin(hint) is Annotated:
        return _is_context(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        given = [each for each in get_args(hint) if each is not NoneType]
        return len(given) == 1 and _is_context(given[0])
    return hint is ToolContext


def _without_partial(function: ToolFunction) -> ToolFunction:
    """The function that has a name, a docstring and type hints."""
    while isinstance(function, functools.partial):
        function = cast("functools.partial[Any]", function).func
    return function


def _as_json(value: object) -> Any:
    """A tool's answer as JSON.

    Raises:
        pydantic_core.PydanticSerializationError: pydantic can make none of it.
        ValueError: It is nested too deep.
    """
    return value if isinstance(value, str) else json_value(pydantic_core.to_jsonable_python(value))


def _unwrapped(error: BaseException) -> BaseException:
    """What went wrong, out of the groups that task groups put it into."""
    while isinstance(error, BaseExceptionGroup):
        inside = cast("tuple[BaseException, ...]", cast("Any", error).exceptions)
        if len(inside) != 1:
            break
        error = inside[0]
    return cast("BaseException", error)


def _failed(call: ContentPartToolCall, why: str) -> ContentPartToolResult:
    return ContentPartToolResult(id=call.id, name=call.name, output=why, is_error=True)


def _why(error: pydantic.ValidationError) -> str:
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    listed = "; ".join(
        f"{'.'.join(map(str, each['loc'])) or 'arguments'}: {each['msg']}" for each in problems
    )
    return f"the arguments do not fit: {listed}"

"""Tools of an agent, and execution of tool calls.

A tool is an instance of `Tool`, or a Python function (sync or async). A function's JSON schema is created from its type hints,
and the descriptions from its docstring, in Google, NumPy or Sphinx style::

    async def get_weather(city: str, unit: Literal["C", "F"] = "C") -> dict[str, Any]:
        "The weather of a city now."
        ...

If a call fails (unknown tool, invalid arguments, exception, timeout), its result is an error for the model. A cancellation
propagates.
"""

import asyncio
import functools
import inspect
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Container, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, cast, get_args, get_origin, get_type_hints

import anyio
import pydantic
import pydantic_core
from pydantic.fields import FieldInfo

from tailrace.streaming.instrumentation import RUN_OBSERVER, ToolCallObservation
from tailrace.streaming.schemas.structured_output import PlainSchema
from tailrace.streaming.tools.approvals import ApprovalPolicy, call_digest
from tailrace.streaming.tools.function_thread import call_in_thread
from tailrace.wrappers import ConfigurationError, ContentPartToolCall, ContentPartToolResult
from tailrace.wrappers.concurrency.worker_thread import json_cost, run_bounded
from tailrace.wrappers.messages import json_value
from tailrace.wrappers.request_options import ToolDefinition

if TYPE_CHECKING:
    from docstring_parser import Docstring

logger = logging.getLogger("tailrace.streaming")

DEFAULT_TIMEOUT = 60.0
"""Default timeout of a call in seconds."""

DEFAULT_CONCURRENCY = 8
"""Default maximum number of concurrent calls of one response."""

ToolFunction = Callable[..., Any]


class ToolError(Exception):
    """Error for the model: the text is the result of the call, with ``is_error``. The error is not logged."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The context of a call.

    A function receives the context in a parameter with the type hint ``ToolContext`` or ``ToolContext | None``. The schema for
    the model does not contain this parameter.

    Attributes:
        call: The call of the model.
        task_id: Id of the task; empty without a server.
        context_id: Id of the conversation; empty without a server. Callers choose this id; it is not unique.
        external_context_id: Opaque id of the conversation, unique for each conversation and caller; empty without a server. Use
            it in other systems, and as the key of stored data.
    """

    call: ContentPartToolCall
    task_id: str = ""
    context_id: str = ""
    external_context_id: str = ""


class Tool(ABC):
    """A tool that the model may call.

    Attributes:
        definition: The definition for the model.
        timeout: Timeout of a call in seconds; None for the timeout of the agent, ``math.inf`` for no limit.
        annotations: The annotations of a tool of an MCP server; None for other tools.
        idempotent: True if a repeated call has no further effect. The server repeats such a call if its result was lost.
    """

    definition: ToolDefinition
    timeout: float | None = None
    annotations: Mapping[str, Any] | None = None
    idempotent: bool = False

    @abstractmethod
    async def call(self, arguments: dict[str, Any], context: ToolContext) -> object:
        """Run the tool.

        Args:
            arguments: The JSON object of the model, not validated against the schema.
            context: The context of the call.

        Returns:
            Text, any other value that pydantic can convert to JSON, or a `ContentPartToolResult`, whose id and name are ignored.

        Raises:
            ToolError: An error for the model. For any other exception, the model receives the class and the text, and the
                exception is logged.
        """


class Toolset(ABC):
    """Tools that share a connection, for example to an MCP server."""

    @abstractmethod
    def connected(self) -> AbstractAsyncContextManager[Sequence[Tool]]:
        """Connect, and yield the tools for the duration of the block.

        Raises:
            ConfigurationError: A required package is not installed, or a program cannot be started.
            UpstreamError: The server cannot be reached, or sends no response.
        """


class FunctionTool(Tool):
    """A Python function as a tool. A sync function runs in a thread (`call_in_thread`), which a timeout does not stop.

    Args:
        function: The function. It must not have positional-only parameters, ``*args`` or ``**kwargs``.
        name: Name for the model; empty for the name of the function.
        description: Description for the model; empty for the docstring without its sections.
        timeout: Timeout of a call in seconds; None for the timeout of the agent.
        strict: See `ToolDefinition`.
        idempotent: See `Tool`.

    Raises:
        ConfigurationError: The signature cannot be converted to a JSON schema.
    """

    def __init__(
        self,
        function: ToolFunction,
        *,
        name: str = "",
        description: str = "",
        timeout: float | None = None,
        strict: bool | None = None,
        idempotent: bool = False,
    ) -> None:
        self._function = function
        self._is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 — checks whether calling it returns a coroutine
        )
        self.timeout = timeout
        self.idempotent = idempotent
        inner = _without_partial(function)
        tool_name = name or getattr(inner, "__name__", type(inner).__name__)
        words = _parse_docstring(inspect.getdoc(inner) or "")
        self._context_name, fields = _fields(function, tool_name, words)
        config = pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=True)
        try:
            make = cast("Any", pydantic.create_model)  # its type hints do not support dynamic fields
            self._arguments: type[pydantic.BaseModel] = make(tool_name, __config__=config, **fields)
            schema = self._arguments.model_json_schema(schema_generator=PlainSchema)
        except pydantic.errors.PydanticUserError as error:
            raise ConfigurationError(
                f"tool {tool_name}: the signature has no JSON schema: {error.message}"
            ) from error
        schema.pop("title", None)
        schema.setdefault("properties", {})
        summary = description or "\n\n".join(filter(None, (words.short_description, words.long_description)))
        self.definition = ToolDefinition(
            name=tool_name, description=summary, parameters=schema, strict=strict
        )

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> object:
        """Call the function; see `Tool.call`."""
        try:
            # As JSON, dates and bytes are strings, and tuples are lists.
            read = self._arguments.model_validate_json(json.dumps(arguments))
        except pydantic.ValidationError as error:
            raise ToolError(_validation_message(error)) from None
        fields = type(read).model_fields.items()
        values = {info.alias or field: getattr(read, field) for field, info in fields}
        if self._context_name:
            values[self._context_name] = context
        if self._is_async:
            return await self._function(**values)
        result = await call_in_thread(lambda: self._function(**values))
        return await cast("Awaitable[object]", result) if inspect.isawaitable(result) else result


def tool(
    function: ToolFunction | None = None,
    *,
    name: str = "",
    description: str = "",
    timeout: float | None = None,
    strict: bool | None = None,
    idempotent: bool = False,
) -> Any:
    """Create a tool from a function: ``@tool`` or ``@tool(name=…, timeout=…)``; see `FunctionTool`."""

    def make(function: ToolFunction) -> FunctionTool:
        return FunctionTool(
            function,
            name=name,
            description=description,
            timeout=timeout,
            strict=strict,
            idempotent=idempotent,
        )

    return make if function is None else make(function)


class ToolRunner:
    """Runs the tool calls of a response concurrently, with a limit for concurrent calls and a timeout for each call.

    Args:
        tools: Tools and functions with unique names.
        timeout: Timeout in seconds of tools without their own timeout.
        concurrency: Maximum number of concurrent calls.
        approvals: Determines the calls that require an approval; None for none.

    Attributes:
        definitions: The definitions for the model.

    Raises:
        ConfigurationError: Two tools have the same name, an object is not a tool, or the concurrency is below 1.
    """

    def __init__(
        self,
        tools: Iterable[Tool | ToolFunction] = (),
        *,
        timeout: float = DEFAULT_TIMEOUT,
        concurrency: int = DEFAULT_CONCURRENCY,
        approvals: ApprovalPolicy | None = None,
    ) -> None:
        self._approvals = approvals
        if concurrency < 1:
            raise ConfigurationError(f"tool concurrency is {concurrency}; the minimum is 1")
        self._timeout = timeout
        self._concurrency = concurrency
        self._tools: dict[str, Tool] = {}
        for each in tools:
            new_tool = as_tool(each)
            if new_tool.definition.name in self._tools:
                raise ConfigurationError(f"two tools have the name {new_tool.definition.name!r}")
            self._tools[new_tool.definition.name] = new_tool
        self.definitions = tuple(each.definition for each in self._tools.values())

    def knows(self, name: str) -> bool:
        """Return True if a tool has this name."""
        return name in self._tools

    def is_idempotent(self, name: str) -> bool:
        """Return True if a tool has this name and is declared as idempotent."""
        return name in self._tools and self._tools[name].idempotent

    def needs_approval(self, call: ContentPartToolCall) -> bool:
        """Return True if a call must be approved before it runs.

        The result is False if the arguments are not a JSON object, or have no canonical form. `run` then yields an error.
        """
        called_tool = self._tools.get(call.name)
        if (
            self._approvals is None
            or called_tool is None
            or not self._approvals.requires(call, called_tool.annotations)
        ):
            return False
        if call.kind != "custom" and call.arguments_error is not None:
            return False
        try:
            call_digest(call)
        except ValueError:
            return False
        return True

    async def run(
        self,
        calls: Sequence[ContentPartToolCall],
        *,
        other_tools: Iterable[str] = (),
        approved: Container[str] = (),
        task_id: str = "",
        context_id: str = "",
        external_context_id: str = "",
    ) -> AsyncGenerator[ContentPartToolResult]:
        """Run calls, and yield the result of each call as soon as it is available.

        Close the generator (``aclosing``) in the asyncio task that started it. Closing cancels running calls. If the asyncio task
        is cancelled, the generator first yields the results of completed calls, which the consumer may ignore.

        Args:
            calls: The calls. The result of a call to an unknown tool is an error.
            other_tools: Names of further tools, for the error of an unknown tool.
            approved: The digests of the approved calls. If a call requires an approval and its digest is missing, the result is
                an error.
            task_id: See `ToolContext`.
            context_id: See `ToolContext`.
            external_context_id: See `ToolContext`.
        """
        observer = RUN_OBSERVER.get()
        limit = anyio.CapacityLimiter(self._concurrency)
        send, receive = anyio.create_memory_object_stream[ContentPartToolResult](len(calls))

        def context_of(call: ContentPartToolCall) -> ToolContext:
            return ToolContext(call, task_id, context_id, external_context_id)

        async def run_one(call: ContentPartToolCall) -> None:
            async with limit:
                # Calls to unknown tools are not observed, because nothing runs.
                with observer.observe_call(call) if self.knows(call.name) else ToolCallObservation() as watch:
                    watch.result = await self._result(call, context_of(call), other_tools, approved)
                send.send_nowait(watch.result)

        with send, receive:
            try:
                async with anyio.create_task_group() as group:
                    for call in calls:
                        group.start_soon(run_one, call, name=f"tool {call.name}")
                    try:
                        for _ in calls:
                            yield await receive.receive()
                    except GeneratorExit:
                        # The task group would wrap GeneratorExit in an exception group.
                        group.cancel_scope.cancel()
            except anyio.get_cancelled_exc_class():
                while receive.statistics().current_buffer_used:
                    yield receive.receive_nowait()
                raise

    async def _result(
        self,
        call: ContentPartToolCall,
        context: ToolContext,
        other_tools: Iterable[str],
        approved: Container[str],
    ) -> ContentPartToolResult:
        try:
            output = await self._call(call, context, other_tools, approved)
            if isinstance(output, ContentPartToolResult):
                return output.model_copy(update={"id": call.id, "name": call.name})
            return ContentPartToolResult(
                id=call.id, name=call.name, output=await run_bounded(json_cost(output), _as_json, output)
            )
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # The call itself was not cancelled. The tool awaited another task or future that was cancelled.
            logger.exception("the tool %s awaited a task that was cancelled", call.name)
            return _failed(call, "a task that the tool awaited was cancelled")
        except Exception as raised:
            error = _unwrapped(raised)
            if isinstance(error, ToolError):
                return _failed(call, str(error) or "the tool failed")
            logger.exception("the tool %s failed", call.name)
            return _failed(call, f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)

    async def _call(
        self,
        call: ContentPartToolCall,
        context: ToolContext,
        other_tools: Iterable[str],
        approved: Container[str],
    ) -> object:
        called_tool = self._tools.get(call.name)
        if called_tool is None:
            known = ", ".join(sorted((*self._tools, *other_tools))) or "none"
            raise ToolError(f"there is no tool named {call.name!r}; the tools are: {known}")
        arguments: dict[str, Any] = dict(call.arguments)
        if call.kind == "custom":
            arguments = {"input": call.arguments_text or ""}
        elif call.arguments_error is not None or (call.arguments_text or "null").strip() != "null":
            reason = f" ({call.arguments_error})" if call.arguments_error else ""
            raise ToolError(
                f"the arguments are not a JSON object{reason}; call the tool again with a JSON object"
            )
        if self._approvals is not None and self._approvals.requires(call, called_tool.annotations):
            _check_approved(call, approved)
        seconds = self._timeout if called_tool.timeout is None else called_tool.timeout
        with anyio.move_on_after(seconds) as scope:
            return await called_tool.call(arguments, context)
        if scope.cancelled_caught:
            raise ToolError(f"the tool exceeded its timeout of {seconds:g} seconds")
        raise AssertionError("the block returns, raises, or is cancelled by its scope")


def _check_approved(call: ContentPartToolCall, approved: Container[str]) -> None:
    try:
        digest = call_digest(call)
    except ValueError as error:
        raise ToolError(f"the call requires an approval, but {error}") from None
    if digest not in approved:
        raise ToolError("the call requires an approval, and was not approved; the tool did not run")


def as_tool(source: Tool | ToolFunction) -> Tool:
    """Convert a function to a `FunctionTool`. Return a `Tool` unchanged.

    Raises:
        ConfigurationError: The object is neither a tool nor a function.
    """
    if isinstance(source, Tool):
        return source
    if callable(source):
        return FunctionTool(source)
    raise ConfigurationError(f"{source!r} is neither a tool nor a function")


def _parse_docstring(text: str) -> "Docstring":
    import docstring_parser  # many servers have no tools

    return docstring_parser.parse(text)


def _fields(
    function: ToolFunction, name: str, words: "Docstring"
) -> tuple[str, Mapping[str, tuple[object, object]]]:
    """Return the name of the context parameter (empty if there is none), and the other parameters as pydantic fields."""
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
                f"tool {name}: the parameter {parameter} cannot be passed by name; tools are called by name"
            )
        if _is_context(hint):
            context_name = key
            continue
        # pydantic reserves some names of fields.
        field_options: dict[str, Any] = {"alias": key}
        if described.get(key) and not FieldInfo.from_annotation(cast("Any", hint)).description:
            field_options["description"] = described[key]
        default: object = ... if parameter.default is parameter.empty else parameter.default
        fields[f"field_{len(fields)}"] = (Annotated[hint, pydantic.Field(**field_options)], default)
    return context_name, fields


def _is_context(hint: object) -> bool:
    if get_origin(hint) is Annotated:
        return _is_context(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        members = [each for each in get_args(hint) if each is not NoneType]
        return len(members) == 1 and _is_context(members[0])
    return hint is ToolContext


def _without_partial(function: ToolFunction) -> ToolFunction:
    while isinstance(function, functools.partial):
        function = cast("functools.partial[Any]", function).func
    return function


def _as_json(value: object) -> Any:
    """Convert the output of a tool to a JSON value.

    Raises:
        pydantic_core.PydanticSerializationError: pydantic cannot convert the value.
        ValueError: The value is nested too deeply.
    """
    return value if isinstance(value, str) else json_value(pydantic_core.to_jsonable_python(value))


def _unwrapped(error: BaseException) -> BaseException:
    """Return the only exception in nested exception groups; a group with several exceptions is returned itself."""
    while isinstance(error, BaseExceptionGroup):
        exceptions = cast("tuple[BaseException, ...]", cast("Any", error).exceptions)
        if len(exceptions) != 1:
            break
        error = exceptions[0]
    return cast("BaseException", error)


def _failed(call: ContentPartToolCall, reason: str) -> ContentPartToolResult:
    return ContentPartToolResult(id=call.id, name=call.name, output=reason, is_error=True)


def _validation_message(error: pydantic.ValidationError) -> str:
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    listed = "; ".join(
        f"{'.'.join(map(str, each['loc'])) or 'arguments'}: {each['msg']}" for each in problems
    )
    return f"the arguments are invalid: {listed}"

"""Base classes of models with an HTTP API. They send requests, read streamed responses, and convert errors.

The model client of each provider is a subclass of `tailrace.wrappers.http.direct_model.DirectModel` or
`tailrace.wrappers.http.official_client_model.ClientModel`. `ClientModel` uses the official client of a provider, which supports
further kinds of credentials (profiles, fetched tokens).
"""

import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from functools import partial
from typing import Any, TypedDict
from urllib.parse import urljoin, urlsplit

from tailrace.wrappers.assembly.continuation_join import TextJoin
from tailrace.wrappers.concurrency.async_resource import AsyncResource, Exit
from tailrace.wrappers.concurrency.worker_thread import history_cost, json_cost, run_bounded
from tailrace.wrappers.continuation import JoinedChunks, Prefill
from tailrace.wrappers.conversion.request_parameters import has_tools, merged
from tailrace.wrappers.conversion.result_repair import with_repaired_results
from tailrace.wrappers.conversion.tool_ids import with_matched_ids
from tailrace.wrappers.conversion.tool_matching import has_tool_parts
from tailrace.wrappers.conversion.tool_names import ToolNames
from tailrace.wrappers.decoding.decoder import ResponseDecoder
from tailrace.wrappers.decoding.error_reports import provider_error
from tailrace.wrappers.errors import ConfigurationError, ProtocolError, UpstreamError, UpstreamFault
from tailrace.wrappers.http import ConnectTimeout, TransportError
from tailrace.wrappers.http.response import Body, ChunkStream
from tailrace.wrappers.http.retries import retry_after
from tailrace.wrappers.messages import ContentPartText, History, Message, Role
from tailrace.wrappers.model import ChunkBatches, Model
from tailrace.wrappers.providers import find_provider
from tailrace.wrappers.redaction.redactor import Redactor
from tailrace.wrappers.request_options import NO_OPTIONS, RequestOptions

BODY_WRAPPER: ContextVar[Callable[[Body], Body] | None] = ContextVar("tailrace_body_wrapper", default=None)
"""Wraps the body of each response before the body is decoded, for example to record it; None for the body itself."""

_MAX_MESSAGE = 500  # maximum number of characters of a text body as an error message
_NETWORK_FAULTS = frozenset({UpstreamFault.CONNECTION, UpstreamFault.TRUNCATED})
_CREDENTIAL_STATUSES = (401, 403)
_OUTPUT_MEMBERS = frozenset({"format", "guided_json", "output_config", "outputConfig", "response_format"})


class ConnectionArguments(TypedDict, total=False):
    """Arguments of all models with an HTTP API; see `HTTPModel`."""

    connect_timeout: float
    read_timeout: float
    max_retries: int
    parameters: Mapping[str, Any] | None


class ModelArguments(ConnectionArguments, total=False):
    """Arguments of all models without an official client; see `DirectModel`."""

    base_url: str | None
    api_key: str | None


class HTTPModel(Model):
    """A model with an HTTP API that streams responses.

    Args:
        name: The model's name.
        connect_timeout: Maximum number of seconds to open a connection.
        read_timeout: Maximum number of seconds without data, before and within a response.
        max_retries: Maximum number of retries of a request. No request is retried after its response has started.
        parameters: Further members of every request, with the provider's names; None for none. The options of a request take
            precedence (see `tailrace.wrappers.conversion.request_parameters.merged`).
    """

    def __init__(
        self,
        name: str,
        *,
        connect_timeout: float = 10.0,
        read_timeout: float = 60.0,
        max_retries: int = 2,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self._connect_timeout = connect_timeout
        self._read_timeout = read_timeout
        self._max_retries = max_retries
        self._parameters = dict(parameters or {})
        self._rejects_prefill = False

    @abstractmethod
    def _members(self, options: RequestOptions) -> dict[str, Any]:
        """Convert options to members of the provider's request; an empty dict for `NO_OPTIONS`.

        Raises:
            ValueError: The provider does not support an option that cannot be omitted.
        """

    def _request_members(self, options: RequestOptions) -> dict[str, Any]:
        """Return the members of a request: the model's parameters, merged with the members for the options.

        Without tools, the tool choice is omitted, because most providers reject it. A choice that requires a call is sent
        nevertheless, so that the provider reports the error.
        """
        if options is NO_OPTIONS:
            return self._parameters
        native = options.native_tools if self.accepts_native_tools else ()
        if not (options.tools or native) and not has_tools(self._parameters):
            choice = options.tool_choice
            chosen = choice if choice is not None and choice.mode in ("required", "tool") else None
            options = options.model_copy(update={"tool_choice": chosen, "parallel_tool_calls": None})
        return merged(self._parameters, self._members(options))

    @abstractmethod
    async def _send(self, history: History, parameters: dict[str, Any], cost: int) -> tuple[Body, Exit]:
        """Send a request with the members ``parameters``.

        Args:
            history: The repaired conversation.
            parameters: The members.
            cost: The cost of ``history`` and ``parameters`` for `run_bounded`.

        Returns:
            The body of the response, and a function that closes the response.
        """

    @abstractmethod
    def _decoder(self) -> ResponseDecoder[Any]:
        """Create a decoder for one response body."""

    def stream(
        self, history: History, options: RequestOptions = NO_OPTIONS
    ) -> AbstractAsyncContextManager[ChunkBatches]:
        """Request and stream the model's response to a conversation; see `Model.stream`.

        An interruption, or another provider, may have made the conversation invalid for this provider. It is therefore repaired:
        calls and results are matched, and invalid ids and tool names are replaced. The calls in the response have the original
        tool names.

        Raises:
            ProtocolError: The provider does not support an option, or a part of the conversation.
        """
        return AsyncResource(partial(self._open_stream, history, options))

    async def continuation(
        self, text: str, history: History, options: RequestOptions = NO_OPTIONS
    ) -> AbstractAsyncContextManager[ChunkBatches] | None:
        """Return a request that continues a text, or None. See `Model.continuation`.

        The result is None if the response has an output format or the text is blank. It is also None if the server has rejected
        such a request, or if it is not known whether the server supports continuations.
        """
        has_format = options.output is not None or not _OUTPUT_MEMBERS.isdisjoint(self._parameters)
        if has_format or self._rejects_prefill or not text.strip():
            return None
        prefill = await self._find_prefill()
        if prefill is None:
            return None
        return AsyncResource(partial(self._continue_text, text, history, options, prefill))

    async def _find_prefill(self) -> Prefill | None:
        """Return the options to continue a text; None if it is not known whether the server supports this."""
        return None

    async def _continue_text(
        self, text: str, history: History, options: RequestOptions, prefill: Prefill
    ) -> tuple[ChunkBatches, Exit]:
        content = (ContentPartText(text=text.rstrip()),)
        message = Message(role=Role.MODEL, content=content, metadata=dict(prefill.metadata))
        model = self._with_root(prefill.root) if prefill.root else self
        try:
            batches, close_body = await model._open_stream(
                history.with_message(message), options, prefill.members
            )
        except UpstreamError as error:
            # llama.cpp's server returns 500 if the chat template of the model does not support a continuation.
            if error.fault is UpstreamFault.STATUS and (not error.concerns_provider or error.status == 500):
                self._mark_prefill_rejected()
            raise
        join = TextJoin(text, is_exact=prefill.is_exact, has_prefix=prefill.has_prefix)
        return JoinedChunks(batches, join, self._mark_prefill_rejected), close_body

    def _mark_prefill_rejected(self) -> None:
        self._rejects_prefill = True

    def _with_root(self, root: str) -> "HTTPModel":
        """Return a copy of this model for another path on the same server, with the same connections."""
        raise NotImplementedError

    async def _open_stream(
        self, history: History, options: RequestOptions, members: Mapping[str, Any] | None = None
    ) -> tuple[ChunkBatches, Exit]:
        names = ToolNames(self.converter.name_rule)
        try:
            parameters = self._request_members(options)
            if members:
                parameters = {**parameters, **members}
            parameters_cost, cost = json_cost(parameters), history_cost(history)
            parameters = await run_bounded(parameters_cost, names.replace_in_parameters, parameters)
            repaired = await run_bounded(cost, self._repaired_history, history, names)
            if repaired is not history:
                cost = history_cost(repaired)
            body, close_body = await self._send(repaired, parameters, cost + parameters_cost)
            wrap = BODY_WRAPPER.get()
            body = body if wrap is None else wrap(body)
        except ValueError as error:
            raise ProtocolError(f"{self.provider} does not support this request: {error}") from error
        return self._response_chunks(body, names if names.has_changes else None, close_body)

    def _response_chunks(
        self, body: Body, names: ToolNames | None, close_body: Exit
    ) -> tuple[ChunkBatches, Exit]:
        """Return the chunks of a response, and a function that closes the response.

        Args:
            body: The body of the response.
            names: The tool names that were replaced; None if no name was replaced.
            close_body: Closes the body.
        """
        return ChunkStream(body, self._decoder(), names, self), close_body

    def _repaired_history(self, history: History, names: ToolNames) -> History:
        if not has_tool_parts(history.conversation):
            return history
        matched = with_repaired_results(with_matched_ids(history, pattern=self.converter.id_pattern))
        return names.replace_in_history(matched)

    def _read_timeout_error(self) -> UpstreamError:
        return UpstreamError(
            f"the provider sent nothing for {self._read_timeout:g} seconds",
            fault=UpstreamFault.TIMEOUT,
            provider=self.provider,
        )

    def connection_error(self, error: Exception) -> UpstreamError:
        """Convert the exception of a connection that was lost during a response."""
        if is_timeout(error):
            return self._read_timeout_error()
        return UpstreamError(
            f"the connection broke in the middle of the response: {_first_line(_cause(error))}",
            fault=UpstreamFault.TRUNCATED,
            provider=self.provider,
        )

    def _unreachable_error(self, error: Exception, tries: int = 1) -> UpstreamError:
        cause = _cause(error)
        if is_timeout(error) and not isinstance(cause, ConnectTimeout):
            timeout_error = self._read_timeout_error()
            timeout_error.tries = tries
            return timeout_error
        return UpstreamError(
            f"the provider cannot be reached: {_first_line(cause)}",
            fault=UpstreamFault.TIMEOUT if is_timeout(error) else UpstreamFault.CONNECTION,
            provider=self.provider,
            tries=tries,
        )

    def redacted_error(self, error: UpstreamError, url: str, headers: Mapping[str, str]) -> UpstreamError:
        """Redact an error and return it. Texts that only the operator may receive are copied to ``error.diagnosis``.

        Call this method for each error: error statuses, connection errors, and errors inside a stream.

        Args:
            error: The error. It is modified.
            url: The URL of the request.
            headers: The headers of the request.
        """
        if error.status in _CREDENTIAL_STATUSES:
            error.diagnosis = error.diagnosis or error.message
            error.message = (
                f"the provider refused this server's credentials; the operator has to check {self._keys}"
            )
            error.details = None
        elif error.fault in _NETWORK_FAULTS:
            error.diagnosis = error.diagnosis or error.message
        return Redactor.of_request(url, headers).redact(error)

    @property
    def _keys(self) -> str:
        """The names of the environment variables for the API key, for an error message."""
        try:
            variables = find_provider(self.provider).key_variables
        except ConfigurationError:
            variables = ()
        return " or ".join(("TAILRACE_API_KEY", *variables))

    def _redirected(self, status: int, headers: Mapping[str, str], url: str) -> UpstreamError:
        """Return the error for a redirect, which is not followed: the conversation and the key are only for this server."""
        origin = _origin(url, headers.get("location", ""))
        return UpstreamError(
            f"the provider redirects to {origin or 'no address'}, and redirects are not followed: set the base URL "
            "(TAILRACE_BASE_URL, --base-url) to where the API is",
            fault=UpstreamFault.STATUS,
            provider=self.provider,
            status=status,
        )

    def _status_error(
        self, status: int, headers: Mapping[str, str], body: object, message: str = ""
    ) -> UpstreamError:
        """Convert a response with an error status to an exception.

        Args:
            status: The HTTP status.
            headers: The headers of the response.
            body: The body of the response, as a JSON value or as text.
            message: The description if the body contains no message.
        """
        words = body.strip() if isinstance(body, str) else None
        if words is not None and (words.startswith("<") or len(words) > _MAX_MESSAGE):
            # An HTML page (for example of a proxy) or a long text is not an error message.
            body, report = words, None
        else:
            report = provider_error(body, self.provider) if body else None
        return UpstreamError(
            report.message if report else f"the provider refused: {message or f'HTTP {status}'}",
            fault=UpstreamFault.STATUS,
            provider=self.provider,
            status=status,
            code=report.code if report else None,
            retry_after=retry_after(headers),
            details=body,
        )


def is_timeout(error: BaseException) -> bool:
    """Return True if an exception is a timeout.

    The cause decides, because official clients also report lost connections as timeouts.
    """
    cause = _cause(error)
    if isinstance(cause, (TransportError, TimeoutError)):
        return isinstance(cause, TimeoutError)
    client = sys.modules.get("httpx2")  # if httpx2 raised the exception, the module is imported
    return client is not None and isinstance(error, client.TimeoutException)


def _origin(base: str, location: str) -> str:
    """Return the scheme, host and port of a URL, which may be relative to ``base``; empty if it is no HTTP URL."""
    try:
        parts = urlsplit(urljoin(base, location))
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return ""
    host = parts.hostname or ""
    if parts.scheme not in ("http", "https") or not host:
        return ""
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}"


def _cause(error: BaseException) -> BaseException:
    """Return the error of tailrace's HTTP client that caused an exception, otherwise the innermost cause."""
    while error.__cause__ is not None and not isinstance(error, (TransportError, TimeoutError)):
        error = error.__cause__
    return error


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0].removesuffix(":") or type(error).__name__

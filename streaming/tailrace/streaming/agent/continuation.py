"""The policy for continuing a response that breaks off: conditions, delays and models. Sans-IO.

A response that breaks off is requested again from the same model, up to `ContinuationPolicy.further_attempts` times, and then once from
each fallback model. The *route* of an attempt (`Route`) is its method of continuing the response. Each model has a
`CircuitBreaker`, which stops requests to a provider that fails repeatedly.
"""

import math
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from time import monotonic
from typing import Any

import msgspec

from tailrace.streaming.accumulator import Accumulator, Attempt
from tailrace.streaming.agent.events import AgentError, ResponseBegun
from tailrace.wrappers import FinishReason, UpstreamError, UpstreamFault, Usage
from tailrace.wrappers.chunks import ReadWrapper
from tailrace.wrappers.continuation import Route
from tailrace.wrappers.decoding.lenient_json import as_count, as_mapping, as_mappings, as_text
from tailrace.wrappers.model import ChunkBatches, Model
from tailrace.wrappers.request_options import NO_OPTIONS, RequestOptions

_REFUSED = frozenset({FinishReason.CONTENT_FILTER, FinishReason.RECITATION})
_SUCCESSFUL = frozenset({FinishReason.STOP, FinishReason.LENGTH, FinishReason.TOOL_CALLS})
# The client of the model has already retried requests with these faults.
_REPEATED = frozenset({UpstreamFault.CONNECTION, UpstreamFault.STATUS})
_CONNECTION_FAULTS = frozenset({UpstreamFault.CONNECTION, UpstreamFault.TIMEOUT, UpstreamFault.TRUNCATED})
_INTERRUPTIONS = frozenset({UpstreamFault.TIMEOUT, UpstreamFault.TRUNCATED})
_LONGEST_PAUSE = 8.0  # seconds
_ROUTES, _FAULTS = frozenset(Route), frozenset(UpstreamFault)
_UNKNOWN_EFFECTS = (
    "the server stopped while the response used a tool of the provider; the tool may have had an effect"
)


class ContinuationPolicy(msgspec.Struct, frozen=True):
    """Limits for the continuation of one response.

    Attributes:
        further_attempts: Maximum number of further requests to the same model.
        deadline: Seconds after the first failure within which an attempt may begin.
        delay: Delay in seconds before the first further attempt. It doubles with each attempt, up to 8 seconds, and a random
            part of up to one half is subtracted. A delay that the provider specifies has precedence.
    """

    further_attempts: int = 1
    deadline: float = 60.0
    delay: float = 0.25

    def pause(self, number: int) -> float:
        """Return the delay before further attempt ``number`` (from 0), without the random part."""
        return min(self.delay * 2 ** min(number, 32), _LONGEST_PAUSE)


NO_CONTINUATION = ContinuationPolicy(further_attempts=0)
"""The policy without further requests to the same model. Without fallback models, a response that breaks off fails."""


class CircuitBreaker:
    """The circuit breaker of one model.

    After `FAILURES` consecutive failures, the breaker opens: requests should use another model. After `SECONDS` seconds, the
    breaker permits one request. If it succeeds, the breaker closes. If it fails, the breaker opens again.

    Args:
        clock: Function that returns the time in seconds.
    """

    FAILURES = 5
    SECONDS = 30.0

    __slots__ = ("_clock", "_failures", "_open_until")

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._failures = 0
        self._open_until = -math.inf

    @property
    def is_open(self) -> bool:
        """True if requests should use another model."""
        return self._failures >= self.FAILURES and self._clock() < self._open_until

    def begin(self) -> None:
        """Register a request."""
        if self._failures >= self.FAILURES:
            self._open_until = self._clock() + self.SECONDS

    def end(self, error: UpstreamError | None) -> None:
        """Register the outcome of a request.

        Args:
            error: The error; None for a successful request. An error for which `UpstreamError.concerns_provider` is False
                counts as a success.
        """
        if error is None or not error.concerns_provider:
            self._failures = 0
            return
        self._failures += 1
        if self._failures >= self.FAILURES:
            self._open_until = self._clock() + self.SECONDS


class InterruptedResponse(msgspec.Struct, frozen=True):
    """A response of which another process published only a part before it stopped.

    Attributes:
        text: The published text, which the model may continue. Empty if the response contains anything else.
        stored_id: The id under which a provider stores the response (`Model.stored_id`); empty if the response is not stored.
        model: The model of the response, as ``provider:name``; empty if it is unknown.
        has_provider_tool: True if the provider had started a tool of its own. The response must then not begin again.
        attempts: The attempts of the response; empty if no part was published. The last attempt has no error.
        calls: The names and ids of the published tool calls. A call of a new response with the same name and position gets the
            published id.
        published_messages: The ids of a remote agent's messages in the published statuses; empty for a model.
    """

    text: str = ""
    stored_id: str = ""
    model: str = ""
    has_provider_tool: bool = False
    attempts: tuple[Attempt, ...] = ()
    calls: tuple[tuple[str, str], ...] = ()
    published_messages: tuple[str, ...] = ()


class NextAttempt(msgspec.Struct, frozen=True):
    """An attempt that has not begun.

    Attributes:
        model: The model to request.
        delay: Seconds to wait before the attempt.
        may_continue_text: True if the model may continue the text so far; False if the response must begin again.
        rest: The request for the rest of a response that the provider stores; None if the provider does not store it.
    """

    model: Model
    delay: float
    may_continue_text: bool
    rest: AbstractAsyncContextManager[ChunkBatches] | None = None


class ResponseAttempts:
    """The attempts of one response.

    Args:
        models: The model and the fallback models, each with its circuit breaker.
        policy: The limits.
        clock: Function that returns the time in seconds.
        choose: Function that returns a random number from 0 to 1 for a delay.

    Attributes:
        model: The model of the current attempt.
        route: The route of the current attempt; None for the first attempt.
        stored_response: The model, and its response that the provider stores but no connection reads; None if there is none.
    """

    __slots__ = (
        "_clock",
        "_deadline",
        "_interrupted",
        "_may_repeat",
        "_models",
        "_number",
        "_options",
        "_policy",
        "_position",
        "_random",
        "_tried_positions",
        "model",
        "route",
        "stored_response",
    )

    def __init__(
        self,
        models: Sequence[tuple[Model, CircuitBreaker]],
        policy: ContinuationPolicy,
        *,
        clock: Callable[[], float] = monotonic,
        choose: Callable[[], float] = random.random,
    ) -> None:
        self._models = models
        self._policy = policy
        self._clock = clock
        self._random = choose
        self._tried_positions: set[int] = set()
        self._position = -1  # before the first model
        self._position = self._next_position() or 0
        self._number = 0  # number of further attempts at the first model
        self._deadline: float | None = None
        self._may_repeat = True
        self._interrupted: Attempt | None = (
            None  # the attempt of another process that the first attempt continues
        )
        self._options = NO_OPTIONS
        self.route: Route | None = None
        self.stored_response: tuple[Model, ChunkBatches | str] | None = None
        self.model, breaker = models[self._position]
        breaker.begin()

    def first(
        self, response: Accumulator, interrupted: InterruptedResponse | None, options: RequestOptions
    ) -> NextAttempt:
        """Return the first attempt.

        Args:
            response: The accumulator of the response. If the attempt continues an interrupted response, the method adds the
                published text and the earlier attempts, and sets its error.
            interrupted: The response that another process has published in part; None for a new response.
            options: The options of the request.

        Raises:
            AgentError: The interrupted response must not be requested again, because it used a tool of the provider. Not raised
                if the provider stores the response.
        """
        if interrupted is None:
            return NextAttempt(self.model, 0.0, may_continue_text=False)
        self._may_repeat = not interrupted.has_provider_tool
        position = self._position_of(interrupted.model)
        self._options = options
        if position is not None and interrupted.stored_id:
            self.stored_response = self._models[position][0], interrupted.stored_id
        rest = self._rest()
        if rest is None and not self._may_repeat:
            raise AgentError(_UNKNOWN_EFFECTS)
        may_continue_text = (
            position is not None and bool(interrupted.text) and not self._models[position][1].is_open
        )
        if position is not None and (rest is not None or may_continue_text):
            self._position, self.model = position, self._models[position][0]
        if rest is None and interrupted.text:
            response.add(ReadWrapper[Any](None, text=interrupted.text))
        response.replaced_calls = interrupted.calls
        attempts = interrupted.attempts
        if not attempts and (interrupted.text or interrupted.stored_id):
            attempts = (Attempt(interrupted.model),)
        if attempts:
            response.attempts += attempts[:-1]
            self._interrupted = attempts[-1]
            response.error = UpstreamError(
                "the server stopped before the response was complete", fault=UpstreamFault.TRUNCATED
            )
        return NextAttempt(self.model, 0.0, may_continue_text=rest is None and may_continue_text, rest=rest)

    def broken(self, response: Accumulator) -> Attempt:
        """Return the attempt that broke off, with the error and the usage of the response.

        Before `begin`, this is the last attempt of the interrupted response.
        """
        attempt, self._interrupted = self._interrupted, None
        attempt = attempt or Attempt(name_of(self.model), self.route)
        return msgspec.structs.replace(attempt, error=response.error, usage=response.usage)

    def connected(self) -> None:
        """Register that the provider accepted the request of the current attempt."""
        self.stored_response = None

    async def release(self) -> None:
        """Cancel the stored response at the provider, if there is one (`Model.release`)."""
        stored_response, self.stored_response = self.stored_response, None
        if stored_response is not None:
            model, response = stored_response
            await model.release(response)

    def first_chunk_step(self, batches: ChunkBatches) -> ResponseBegun:
        """Return the step for the first chunk of the current attempt."""
        return ResponseBegun(name_of(self.model), self.route, self.model.stored_id(batches))

    def _position_of(self, name: str) -> int | None:
        names = [name_of(model) for model, _ in self._models]
        return names.index(name) if name in names else None

    def ended(
        self, response: Accumulator, batches: ChunkBatches | None = None, received: int = 0
    ) -> NextAttempt | None:
        """Register the end of the current attempt. Return the next attempt; None if there is none.

        Args:
            response: The response so far; its ``error`` is set if it is incomplete.
            batches: The chunks of the attempt; None if the request failed.
            received: The number of chunks that arrived.
        """
        error = response.error = response.failure
        breaker = self._models[self._position][1]
        has_attached = self.route is Route.ATTACH and received > 0
        breaker.end(None if has_attached else error)
        if batches is not None and error is not None and error.fault in _INTERRUPTIONS:
            self.stored_response = (self.model, batches) if self.model.stored_id(batches) else None
        has_no_attempts = self._policy.further_attempts == 0 and len(self._models) == 1 and self.route is None
        if error is None or has_no_attempts:
            return None
        if _is_complete(response, error):
            response.error = self.stored_response = None
            return None
        can_repeat = self._can_repeat(response)
        # If no content of a continuation has arrived, the provider may have rejected only the continuation.
        has_failed = self.route is Route.PREFILL and response.is_attempt_empty
        has_failed = has_failed or (self.route is Route.ATTACH and not received)
        if self._is_refused(error, has_failed):
            if error.fault is UpstreamFault.STATUS or error.code == "cancelled":
                self.stored_response = None
            return NextAttempt(self.model, 0.0, may_continue_text=False) if can_repeat else None
        if has_attached:
            self._number, self._deadline = 0, None  # no limit while each connection receives chunks
        rest = self._rest() if error.is_temporary else None
        if not error.concerns_provider or not (rest is not None or can_repeat):
            return None
        now = self._clock()
        if self._deadline is None:
            self._deadline = now + self._policy.deadline
        delay = self._delay(error)
        may_request = not breaker.is_open and now + delay <= self._deadline
        may_continue_text = (self._position == 0 or rest is not None) and (
            rest is not None or error.fault not in _REPEATED
        )
        if (
            may_request
            and may_continue_text
            and error.is_temporary
            and self._number < self._policy.further_attempts
        ):
            self._number += 1
            return NextAttempt(self.model, delay, may_continue_text=not response.finished, rest=rest)
        self._tried_positions.add(self._position)
        following = self._next_position() if can_repeat else None
        is_reachable = error.fault is not UpstreamFault.CONNECTION or following is None
        if has_failed and can_repeat and may_request and is_reachable:
            return NextAttempt(self.model, delay, may_continue_text=False)
        if following is None or now > self._deadline:
            return None
        self._position = following
        return NextAttempt(self._models[following][0], 0.0, may_continue_text=False)

    def begin(self, attempt: NextAttempt, route: Route) -> None:
        """Register the start of an attempt."""
        self.model, self.route = attempt.model, route
        self._models[self._position][1].begin()

    def _can_repeat(self, response: Accumulator) -> bool:
        return self._may_repeat and can_repeat(response)

    def _rest(self) -> AbstractAsyncContextManager[ChunkBatches] | None:
        """Return the request for the rest of the stored response; None if there is none."""
        if self.stored_response is None:
            return None
        model, response = self.stored_response
        return model.attachment(response, self._options)

    def _is_refused(self, error: UpstreamError, has_failed: bool) -> bool:
        """Return True if the provider rejected only the route of the current attempt, not the conversation."""
        if self.route not in (Route.ATTACH, Route.PREFILL):
            return False
        if error.fault is UpstreamFault.INVALID or (self.route is Route.ATTACH and error.code == "cancelled"):
            return True
        is_refusal = error.fault is UpstreamFault.STATUS or (
            has_failed and error.fault is UpstreamFault.PROVIDER
        )
        return is_refusal and not error.is_temporary

    def _next_position(self) -> int | None:
        """Return the position of the next model to try; None if there is none.

        Models with an open breaker are omitted. Models before an interrupted fallback model are tried last.
        """
        positions = [*range(self._position + 1, len(self._models)), *range(self._position + 1)]
        usable = (each for each in positions if not self._models[each][1].is_open)
        return next((each for each in usable if each not in self._tried_positions), None)

    def _delay(self, error: UpstreamError) -> float:
        if error.retry_after is not None:
            return error.retry_after
        return self._policy.pause(self._number) * (1 - 0.5 * self._random())


def _is_complete(response: Accumulator, error: UpstreamError) -> bool:
    """Return True if a response is complete although an error follows its finish reason.

    If the error is in the chunk of the finish reason, the response is incomplete: OpenRouter sends both if a provider fails.
    """
    if not response.finished or error.fault not in (*_CONNECTION_FAULTS, UpstreamFault.PROVIDER):
        return False
    reasons = {choice.finish_reason for choice in response.choices.values()} - {None}
    return error.fault is not UpstreamFault.PROVIDER or (
        response.was_finished_at_error and reasons <= _SUCCESSFUL
    )


def can_repeat(response: Accumulator) -> bool:
    """Return True if a response that broke off may be requested again.

    This is not permitted if a content filter stopped it, or if the model refused. Nor is it permitted if the provider had started
    a tool of its own, because the tool may have had an effect.
    """
    for choice in response.choices.values():
        if choice.refusal or choice.finish_reason in _REFUSED:
            return False
        if any(call.kind == "server" for call in choice.tool_calls):
            return False
    return True


def name_of(model: Model) -> str:
    """Return ``provider:name``."""
    return f"{model.provider}:{model.name}"


def attempts_of(attempts_json: object) -> list[Attempt]:
    """Parse attempts from the JSON of `attempts_to_json`. Invalid values are ignored."""
    attempts: list[Attempt] = []
    for fields in as_mappings(attempts_json):
        error, usage = as_mapping(fields.get("error")), as_mapping(fields.get("usage"))
        route, fault = as_text(fields.get("route")), as_text((error or {}).get("type"))
        input_tokens, output_tokens = (
            as_count((usage or {}).get(name)) or 0 for name in ("inputTokens", "outputTokens")
        )
        attempts.append(
            Attempt(
                as_text(fields.get("model")),
                Route(route) if route in _ROUTES else None,
                UpstreamError(
                    "the attempt broke off",
                    fault=UpstreamFault(fault),
                    status=as_count((error or {}).get("status")),
                    code=as_text((error or {}).get("code")) or None,
                )
                if fault in _FAULTS
                else None,
                Usage(input_tokens, output_tokens, input_tokens + output_tokens)
                if usage is not None
                else None,
            )
        )
    return attempts


def attempts_to_json(attempts: Sequence[Attempt]) -> list[dict[str, Any]]:
    """Return the attempts as JSON values."""
    items: list[dict[str, Any]] = []
    for attempt in attempts:
        error = attempt.error
        causes = (
            {"type": str(error.fault), "status": error.status, "code": error.code}
            if error is not None
            else {}
        )
        usage = attempt.usage
        items.append(
            {
                "model": attempt.model,
                **({"route": str(attempt.route)} if attempt.route is not None else {}),
                **({"error": {name: cause for name, cause in causes.items() if cause}} if causes else {}),
                **(
                    {"usage": {"inputTokens": usage.input_tokens, "outputTokens": usage.output_tokens}}
                    if usage is not None
                    else {}
                ),
            }
        )
    return items

"""The last status of a turn."""

import logging
import math

import anyio
import msgspec

from tailrace.server.runtime.interrupted_responses import attempts_of_turn
from tailrace.server.runtime.limits import RateLimitError
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI, extension_metadata, with_extension_metadata
from tailrace.streaming.task.task_record import TaskRecord, agent_message
from tailrace.streaming.task.updates import StatusUpdate
from tailrace.wrappers import TailraceError

logger = logging.getLogger("tailrace.server")

COMPLETED = StatusUpdate(TaskState.COMPLETED)
"""The last status of a turn whose handler returned without a status."""

HANDLER_FAILED = "the agent failed; see the log of the server"
"""The message of a turn whose handler raised an unexpected error."""


def failed_because(reason: str) -> StatusUpdate:
    """Return the status FAILED with a message for the caller."""
    return StatusUpdate(TaskState.FAILED, agent_message(reason))


def ending_after(error: BaseException, task_id: str) -> StatusUpdate:
    """Return the last status of a turn whose handler raised an error. Log an unexpected error.

    Raises:
        BaseException: The handler did not cause the error, for example because the engine is cancelled.
    """
    if isinstance(error, TailraceError):
        fields = {EXTENSION_URI: {"error": error.error_fields}} if isinstance(error, RateLimitError) else None
        return StatusUpdate(TaskState.FAILED, agent_message(str(error)), fields)
    is_cancelled = isinstance(error, anyio.get_cancelled_exc_class())
    if not (is_cancelled or isinstance(error, Exception)):
        raise error
    if is_cancelled and anyio.current_effective_deadline() == -math.inf:
        raise error  # the engine is cancelled
    # The handler awaited a cancelled object. If this error were raised, it would cancel all turns.
    outcome = "raised a cancellation error" if is_cancelled else "failed"
    logger.error("the handler of task %s %s", task_id, outcome, exc_info=error)
    return failed_because(HANDLER_FAILED)


def with_attempts(ending: StatusUpdate, record: TaskRecord, turn: int) -> StatusUpdate:
    """Add the attempts of a continued response to the last status of its turn, unless it already has attempts."""
    attempts = attempts_of_turn(record, turn)
    if not attempts or "attempts" in extension_metadata(ending.metadata or {}):
        return ending
    return msgspec.structs.replace(
        ending, metadata=with_extension_metadata(ending.metadata or {}, attempts=attempts)
    )

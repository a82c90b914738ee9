"""The cost of processing A2A objects, for `tailrace.wrappers.concurrency.worker_thread.run_bounded`."""

from collections.abc import Iterable

from tailrace.streaming.a2a.models import A2AModel, Message, Task
from tailrace.wrappers.concurrency.worker_thread import json_cost


def cost_of(messages: Iterable[Message]) -> int:
    """Return the cost of processing messages."""
    return json_cost(tuple(messages))


def cost_of_task(task: Task) -> int:
    """Return the cost of processing a task with its messages and artifacts."""
    return json_cost(task)


def cost_of_result(result: object) -> int:
    """Return the cost of processing the result of an operation."""
    return json_cost(result) if isinstance(result, A2AModel) else 0

"""Estimates of the time for processing A2A objects.

The unit is the number of JSON values. If the estimate is high,
`tailrace.wrappers.concurrency.worker_thread.run_bounded` runs the work in a thread.
"""

from collections.abc import Iterable

from tailrace.streaming.a2a.models import A2AModel, Message, Task
from tailrace.wrappers.concurrency.worker_thread import json_cost


def cost_of(messages: Iterable[Message]) -> int:
    """Return the cost of processing messages, for `run_bounded`; see `json_cost`."""
    return json_cost(tuple(messages))


def cost_of_task(task: Task) -> int:
    """Return the cost of processing a task with its messages and artifacts; see `cost_of`."""
    return json_cost(task)


def cost_of_result(result: object) -> int:
    """Return the cost of processing the result of an operation; see `cost_of`."""
    return json_cost(result) if isinstance(result, A2AModel) else 0

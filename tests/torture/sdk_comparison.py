"""Comparison: the same resumptions with a server made with the official SDK and its own client.

The protocol has no event numbers: a client that resubscribes receives the task's snapshot and adds the following events
(A2A 1.0, 3.1.6). A piece that is in the snapshot and in a later event is repeated, one that is in neither is
lost. These faults violate no invariant of tailrace and are not counted as violations.
"""

import random
from collections import Counter
from collections.abc import Iterable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import anyio
from a2a.client import Client
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import GetTaskRequest, Message, Part, Role, SendMessageRequest, SubscribeToTaskRequest, Task
from a2a.utils.errors import A2AError

from support.sdk_server import sdk_server
from torture.outcome import Outcome
from torture.resumes import PACES, READERS


class _Writer(AgentExecutor):
    """Responds with numbered pieces at the requested pace."""

    def __init__(self, pieces: int) -> None:
        self._pieces = pieces

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        task_id, context_id = str(context.task_id), str(context.context_id)
        task = Task(id=task_id, context_id=context_id)
        if context.message is not None:
            task.history.append(context.message)
        await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task_id, context_id)
        await updater.start_work()
        pace = float(context.get_user_input())
        for number in range(self._pieces):
            await updater.add_artifact([Part(text=f"{number} ")], artifact_id="text", append=number > 0)
            if pace:
                await anyio.sleep(pace)
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise NotImplementedError


@dataclass
class _Trials:
    resumed: int = 0
    over: int = 0
    lost: int = 0
    repeated: int = 0


async def run(
    folder: Path, rng: random.Random, *, pieces: int = 60, paces: tuple[float, ...] = PACES, step: int = 2
) -> Outcome:
    """Run `torture.resumes.run` with the SDK's server and client."""
    trials = {pace: _Trials() for pace in paces}
    every = {str(number) for number in range(pieces)}
    todo = [(pace, number) for pace in paces for number in range(1, pieces + 1, step)]
    rng.shuffle(todo)
    # One task at a time: server and clients share this process, and concurrent tasks would only worsen the result.
    async with sdk_server(_Writer(pieces)) as server:
        for pace, number in todo:
            await _try(server.client, pace, number, every, trials[pace])
    outcome = Outcome("resume, a2a-sdk", rounds=len(todo), comparison=True)
    outcome.lost = sum(each.lost for each in trials.values())
    outcome.repeated = sum(each.repeated for each in trials.values())
    by_pace = ", ".join(
        f"{each.repeated}/{each.resumed} at {pace * 1e3:g} ms" for pace, each in trials.items()
    )
    outcome.figures.append(
        f"resumptions (not events) with a lost or repeated piece; repeated {by_pace}; "
        f"{sum(each.over for each in trials.values())} refused since the task was over"
    )
    return outcome


async def _try(client: Client, pace: float, number: int, every: set[str], trials: _Trials) -> None:
    message = Message(message_id=str(uuid4()), role=Role.ROLE_USER, parts=[Part(text=str(pace))])
    task_id, count = "", 0
    async with aclosing(_agen(client.send_message(SendMessageRequest(message=message)))) as events:
        async for event in events:
            task_id = task_id or event.task.id
            count += event.HasField("artifact_update")
            if count == number:
                break
    async with anyio.create_task_group() as group:
        for _ in range(READERS):
            group.start_soon(_resume, client, task_id, every, trials)


async def _resume(client: Client, task_id: str, every: set[str], trials: _Trials) -> None:
    pieces: Counter[str] = Counter()
    trials.resumed += 1
    try:
        async with aclosing(_agen(client.subscribe(SubscribeToTaskRequest(id=task_id)))) as events:
            async for event in events:
                if event.HasField("task"):
                    pieces = Counter(_pieces(event.task.artifacts))
                elif event.HasField("artifact_update"):
                    pieces.update(_pieces([event.artifact_update.artifact]))
    except A2AError:
        trials.over += 1
        pieces = Counter(_pieces((await client.get_task(GetTaskRequest(id=task_id))).artifacts))
    trials.lost += bool(every - pieces.keys())
    trials.repeated += any(count > 1 for count in pieces.values())


def _pieces(artifacts: Iterable[Any]) -> list[str]:
    return [piece for each in artifacts for part in each.parts for piece in part.text.split()]


def _agen(events: object) -> Any:
    """The SDK declares iterators; they are generators, which can be closed early."""
    return cast("Any", events)

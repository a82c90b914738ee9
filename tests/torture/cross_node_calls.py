"""Cancellations, follow-up messages and webhooks at a node that does not run the task, or at two nodes at once."""

import random
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from support.webhook_receiver import Delivery, Receiver, receiving
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from torture.clusters import Cluster, Followed, begin, check, cluster, read_on
from torture.outcome import Outcome
from torture.server_process import until
from torture.stream_client import Refused, call, message
from torture.upstream import Order

MAX_P99 = 0.050
"""Seconds from a request to its response."""

DOUBLED = 4
"""One in so many requests is sent to two nodes at once, without measuring its duration."""

_NOT_CANCELABLE = -32002


async def run(
    folder: Path, rng: random.Random, outcome: Outcome, *, each: int = 200, timed: bool = True
) -> None:
    """Cancel and continue tasks of other nodes, and register webhooks for them.

    Args:
        folder: The folder for logs.
        rng: Chooses the nodes.
        outcome: Receives the results.
        each: The number of each request.
        timed: Whether durations are checked.
    """
    canceled: list[float] = []
    left: list[float] = []
    follow_ups: list[float] = []
    everyone: list[Followed] = []

    set_there: list[float] = []

    async with receiving() as webhooks, cluster(folder, push_notifications="private") as nodes:

        async def cancel(key: str, doubled: bool) -> None:
            order = Order(key, pieces=1_000, pace=0.005)
            followed = Followed(order, 1)
            home, *others = rng.sample(nodes.urls, 3)
            await begin(nodes, followed, home)
            requested_at = 0.0
            async with anyio.create_task_group() as group:
                for seen, url in zip(followed.readers, others, strict=True):
                    group.start_soon(partial(read_on, nodes, followed, seen, rng, outcome, stays_at=url))
                await anyio.sleep(rng.random() * 0.05)
                requested_at = time.monotonic()
                for url in others[: 1 + doubled]:
                    group.start_soon(_cancel, nodes, url, followed, outcome, [] if doubled else canceled)

            async def has_left() -> bool:
                return (await nodes.provider.stats(nodes.http, key)).left_at is not None

            await until(has_left, 5)
            provider = await nodes.provider.stats(nodes.http, key)
            # A task may be canceled before its request to the provider.
            is_quiet = provider.left_at is not None or not provider.requests
            outcome.check(is_quiet, f"{key}: canceled, and the provider continues")
            if provider.left_at is not None and not doubled:
                left.append(provider.left_at - requested_at)
            outcome.check(followed.caller.state == "TASK_STATE_CANCELED", f"{key}: not canceled")
            everyone.append(followed)

        async def go_on(key: str, doubled: bool) -> None:
            first = Order(f"{key}.1", pieces=60, pace=0.005)
            second = Order(f"{key}.2", pieces=20)
            followed = Followed(first, 0)
            home, *others = rng.sample(nodes.urls, 3)
            await begin(nodes, followed, home)
            params = message(second, taskId=followed.task_id)
            params["configuration"] = {"returnImmediately": True}
            # Repeat the message as after a timeout: the idempotency key identifies it as the same message.
            params["metadata"] = {EXTENSION_URI: {"idempotencyKey": key}}
            async with anyio.create_task_group() as group:
                for url in others[: 1 + doubled]:
                    group.start_soon(_say, nodes, url, params, key, outcome, [] if doubled else follow_ups)
            seen = followed.caller
            await read_on(nodes, followed, seen, rng, outcome)
            for order in (first, second):
                requests = (await nodes.provider.stats(nodes.http, order.key)).requests
                outcome.check(requests == 1, f"{order.key}: asked for {requests} times")
                texts = ["".join(pieces) for pieces in seen.texts.values()]
                outcome.check(
                    texts.count(order.text()) == 1, f"{order.key}: not answered once: {len(texts)} texts"
                )
            outcome.lost += seen.lost
            outcome.repeated += seen.repeated

        kinds = {
            "cancel": cancel,
            "go_on": go_on,
            "tell": partial(_notify, nodes, webhooks, rng, outcome, set_there),
        }
        for name, errand in kinds.items():
            for number in range(each):
                await errand(f"{name}{number}", False)
                if number % DOUBLED == 0:
                    await errand(f"{name}{number}.doubled", True)
                outcome.rounds += 1
        await check(nodes, everyone, outcome)
    figures = {
        "cancel": canceled,
        "the provider left": left,
        "follow-up": follow_ups,
        "webhook": set_there,
    }
    outcome.figures.append(
        "from another node: "
        + "; ".join(
            f"{name} p50 {_quantile(of, 0.5):.1f} ms, p99 {_quantile(of, 0.99):.1f} ms"
            for name, of in figures.items()
        )
        + f", of {each}; {-(-each // DOUBLED)} more of each kind at two nodes at once happened once"
    )
    for name, of in figures.items():
        late = _quantile(of, 0.99)
        outcome.check(late <= MAX_P99 * 1e3 or not timed, f"{name}: p99 {late:.1f} ms")


async def _cancel(nodes: Cluster, url: str, followed: Followed, outcome: Outcome, took: list[float]) -> None:
    requested_at = time.monotonic()
    try:
        task = await call(nodes.http, url, "CancelTask", {"id": followed.task_id})
    except Refused as refused:
        outcome.check(refused.args[0]["code"] == _NOT_CANCELABLE, f"{followed.order.key}: {refused}")
    else:
        took.append(time.monotonic() - requested_at)
        state = task["status"]["state"]
        outcome.check(state == "TASK_STATE_CANCELED", f"{followed.order.key}: canceled, and {state}")


async def _say(
    nodes: Cluster, url: str, params: dict[str, Any], key: str, outcome: Outcome, took: list[float]
) -> None:
    requested_at = time.monotonic()
    try:
        await call(nodes.http, url, "SendMessage", params)
    except Refused as refused:
        outcome.check(False, f"{key}: {refused}")
    else:
        took.append(time.monotonic() - requested_at)


async def _notify(
    nodes: Cluster,
    webhooks: Receiver,
    rng: random.Random,
    outcome: Outcome,
    took: list[float],
    key: str,
    doubled: bool,
) -> None:
    for pace in (0.005, 0.02, 0.08, 0.32):
        name = f"{key}.{pace}"
        followed = Followed(Order(name, pieces=60, pace=pace), 0)
        home, *others = rng.sample(nodes.urls, 3)
        await begin(nodes, followed, home)
        webhook = {"taskId": followed.task_id, "id": "w", "url": f"{webhooks.url}/{name}"}
        async with anyio.create_task_group() as group:
            for url in others[: 1 + doubled]:
                group.start_soon(_set, nodes, url, webhook, outcome, [] if doubled else took)
        set_at = datetime.now(UTC)
        await read_on(nodes, followed, followed.caller, rng, outcome)
        task = await call(nodes.http, home, "GetTask", {"id": followed.task_id})
        if datetime.fromisoformat(task["status"]["timestamp"]) > set_at:
            break
    else:  # on a busy machine, a task can end before it has the webhook
        outcome.check(False, f"{key}: every task ended before its webhook was set")
        return

    def for_task(everything: Sequence[Delivery]) -> list[Delivery]:
        return [each for each in everything if each.path.endswith(f"/{name}")]

    everything = for_task(await webhooks.until(lambda deliveries: any(map(_is_last, for_task(deliveries)))))
    states = [each.state for each in everything]
    # The webhook may be registered before the work begins.
    ends = [state for state in states if state != "TASK_STATE_WORKING"]
    outcome.check(ends == ["TASK_STATE_COMPLETED"] * 2, f"{key}: the webhook received {states}")
    names = {each.event for each in everything}
    outcome.check(len(names) == len(everything), f"{key}: a repeated notification")


async def _set(
    nodes: Cluster, url: str, webhook: dict[str, Any], outcome: Outcome, took: list[float]
) -> None:
    requested_at = time.monotonic()
    try:
        await call(nodes.http, url, "CreateTaskPushNotificationConfig", webhook)
    except Refused as refused:
        outcome.check(False, f"{webhook['url']}: {refused}")
    else:
        took.append(time.monotonic() - requested_at)


def _is_last(delivery: Delivery) -> bool:
    return delivery.event.endswith("/task")


def _quantile(times: list[float], share: float) -> float:
    """Return a quantile in milliseconds."""
    ordered = sorted(times)
    return 1e3 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0

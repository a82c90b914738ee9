"""Approvals: servers and nodes are killed between the request, the approval and the execution of tool calls.

Clients request calls, decide about them, and repeat each request that had no response. The tool appends a line to a file. The
file and the recorded decisions show whether each call ran as decided.
"""

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import aiohttp
import anyio
import rfc8785

from support.processes import Served
from tailrace.server.runtime.approvals import LOST, NOT_BEGUN
from tailrace.server.runtime.recovery import MAX_RESTARTS
from tailrace.server.settings import Bounds
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from torture.append_tool import FILE
from torture.clusters import cluster
from torture.outcome import Outcome
from torture.server_process import server
from torture.stream_client import FINAL, Refused, call, client, message
from torture.upstream import Order, upstream

LATEST = 1.5  # seconds after which a server is killed at the latest
TTL = 6.0  # a busy machine must not end the tasks of a running node: their failure would be neither result
PATIENCE = 90.0  # seconds within which every call ends
TOOL = "append"
_INVALID, _ENDED = -32602, -32004
_TESTS = str(Path(__file__).parents[1])

Decision = Literal["approve", "reject", "edit"]
Phase = Literal["request", "decision", "execution"]
_DECISIONS: tuple[Decision, ...] = ("approve", "reject", "edit")


class Call:
    """A call of the tool, from the request to the end of its task.

    Attributes:
        key: The argument of the call, and the name of its conversation.
        decisions: The decisions that were sent.
        phase: The phase in which a server may be killed.
        task: The last known state of the task; empty before the first response.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        self.decisions: set[str] = set()
        self.phase: Phase = "request"
        self.task: dict[str, Any] = {}

    @property
    def line(self) -> str:
        """The line that the call appends."""
        return self.key

    @property
    def edited_line(self) -> str:
        """The line that the call appends with the arguments of an edit."""
        return f"{self.key} edited"

    @property
    def over(self) -> bool:
        """Return whether the task has ended."""
        return bool(self.task) and self.task["status"]["state"] in FINAL

    def requests(self) -> list[dict[str, Any]]:
        """Return the calls that wait for an approval."""
        parts = self.task.get("status", {}).get("message", {}).get("parts", ())
        return [each for part in parts for each in part.get("data", {}).get("approval_requests", ())]


class Clients:
    """Clients that make calls until they are stopped, and then complete the last ones.

    Args:
        http: The HTTP session.
        rng: Chooses decisions and delays.
        outcome: Receives violations.
        file: The file of the tool.
        key: The prefix of the names of calls.
        url: Returns the base URL of a running server; raises an IndexError if there is none.

    Attributes:
        calls: All calls.
    """

    def __init__(
        self,
        http: aiohttp.ClientSession,
        rng: random.Random,
        outcome: Outcome,
        file: Path,
        key: str,
        url: Callable[[], str],
    ) -> None:
        self._http, self._rng, self._outcome = http, rng, outcome
        self._file, self._key, self._url = file, key, url
        self.calls: list[Call] = []
        self._stopped = False
        self._done = anyio.Event()

    def phases(self) -> Counter[str]:
        """Return the number of unfinished calls in each phase."""
        return Counter(each.phase for each in self.calls if not each.over)

    async def run_all(self, clients: int) -> None:
        """Make calls with several clients until `stop` is called, and complete them."""
        async with anyio.create_task_group() as group:
            for _ in range(clients):
                group.start_soon(self._run)
        self._done.set()

    async def stop(self) -> None:
        """Make no new calls, and wait until the last ones are complete."""
        self._stopped = True
        await self._done.wait()

    async def _run(self) -> None:
        while not self._stopped:
            made = Call(f"{self._key}{len(self.calls)}")
            self.calls.append(made)
            with anyio.move_on_after(PATIENCE) as scope:
                await self._complete(made)
            if scope.cancelled_caught:
                self._outcome.unfinished += 1
                self._outcome.check(False, f"{made.key}: no end in the phase {made.phase}: {made.task}")

    async def _complete(self, made: Call) -> None:
        while not made.over:
            try:
                if not made.task:
                    params = message(Order(made.key, pieces=3, tool=TOOL), contextId=made.key)
                    params["metadata"] = {EXTENSION_URI: {"idempotencyKey": made.key}}
                    made.task = (await call(self._http, self._url(), "SendMessage", params))["task"]
                elif made.requests():
                    await self._decide(made)
                else:
                    await anyio.sleep(0.02)  # a server that starts, or takes the task over
                made.task = await call(self._http, self._url(), "GetTask", {"id": made.task["id"]})
            except (aiohttp.ClientError, OSError, IndexError):
                await anyio.sleep(0.02)
            except Refused as refused:
                await self._check_refusal(made, refused)

    async def _check_refusal(self, made: Call, refused: Refused) -> None:
        """Check an error: while a server starts, or takes a task over, clients try again."""
        error = refused.args[0]
        is_client_error = error["code"] in (_INVALID, -32001)
        self._outcome.check(not is_client_error, f"{made.key}: {error}")
        await anyio.sleep(0.02)

    async def _decide(self, made: Call) -> None:
        """Decide about a call: at once or later, with the same decision twice, or with two decisions at the same time."""
        [request] = made.requests()
        if not made.decisions:
            made.phase = "decision"
            await self._check_not_executed(made)
            await anyio.sleep(self._rng.choice((0, 0, self._rng.random())))
            if self._rng.random() < 0.2:
                await self._send_other_arguments(made, request)
        choice = self._rng.choices(_DECISIONS, (6, 1, 2))[0]
        other = self._rng.choice(_DECISIONS)
        made.phase = "execution"
        decisions: list[Decision] = [choice, other] if self._rng.random() < 0.3 else [choice]
        async with anyio.create_task_group() as group:
            for decision in decisions:
                group.start_soon(self._send, made, request, decision)

    async def _send(self, made: Call, request: dict[str, Any], decision: Decision) -> None:
        made.decisions.add(decision)
        entry = {"digest": request["digest"], "decision": decision}
        if decision == "edit":
            entry["arguments"] = {"line": made.edited_line}
        try:
            await self._send_entry(made, entry)
        except (aiohttp.ClientError, OSError, IndexError):
            pass  # the state of the task shows whether the decision was accepted
        except Refused as refused:
            error = refused.args[0]
            is_late = error["code"] == _ENDED or "waits for an approval" in error["message"]
            self._outcome.check(is_late or error["code"] != _INVALID, f"{made.key}: {decision}: {error}")

    async def _send_other_arguments(self, made: Call, request: dict[str, Any]) -> None:
        """Approve the call with other arguments, which must be rejected."""
        other = {"arguments": {"line": "other"}, "callId": request["call_id"], "name": TOOL}
        digest = hashlib.sha256(rfc8785.dumps(other)).hexdigest()
        try:
            await self._send_entry(made, {"digest": digest, "decision": "approve"})
        except (aiohttp.ClientError, OSError, IndexError, Refused):
            return
        self._outcome.check(False, f"{made.key}: a digest of other arguments was approved")

    async def _send_entry(self, made: Call, entry: dict[str, Any]) -> None:
        params = message("", taskId=made.task["id"])
        params["message"]["parts"] = [{"data": {"approval_responses": [entry]}}]
        await call(self._http, self._url(), "SendMessage", params)

    async def _check_not_executed(self, made: Call) -> None:
        lines = await _lines(self._file)
        self._outcome.check(
            not {made.line, made.edited_line} & lines.keys(), f"{made.key}: executed without approval"
        )


async def _lines(file: Path) -> Counter[str]:
    path = anyio.Path(file)
    return Counter((await path.read_text()).splitlines()) if await path.exists() else Counter()


async def run(
    folder: Path, rng: random.Random, *, kills: int = 100, node_kills: int = 100, clients: int = 15
) -> Outcome:
    """Kill servers under calls that require approvals.

    Args:
        folder: For databases, logs and the file of the tool.
        rng: Chooses decisions, moments and nodes.
        kills: Kills of the only server.
        node_kills: Kills of a random node of three.
        clients: The number of concurrent calls.
    """
    outcome = Outcome("approvals")
    if kills:
        await kill_server(folder / "server", rng, outcome, kills, clients)
    if node_kills:
        await kill_nodes(folder / "nodes", rng, outcome, node_kills, clients)
    return outcome


def _settings(file: Path) -> dict[str, Any]:
    return {
        "tools": f"torture.append_tool:{TOOL}",
        "approvals": TOOL,
        FILE: str(file),
        "PYTHONPATH": _TESTS,
    }


async def kill_server(folder: Path, rng: random.Random, outcome: Outcome, kills: int, clients: int) -> None:
    """Kill the only server, and start another one on the same store."""
    await anyio.Path(folder).mkdir(parents=True)
    file = folder / "lines"
    running: list[Served] = []
    phases: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    with upstream() as provider:
        async with client() as http, anyio.create_task_group() as group:
            made = Clients(http, rng, outcome, file, "s", lambda: running[0].url)
            group.start_soon(made.run_all, clients)
            for _ in range(kills):
                async with server(folder, provider.base_url, _settings(file)) as process:
                    running.append(process)
                    await anyio.sleep(rng.random() * LATEST)
                    phases.update(made.phases())
                    running.clear()
                    await anyio.to_thread.run_sync(process.kill)
                    outcome.rounds += 1
            async with server(folder, provider.base_url, _settings(file)) as process:
                running.append(process)
                await made.stop()
                counts = await _check(http, process.url, outcome, made.calls, file)
    _report(outcome, f"{kills} kills of a server", counts, phases)


async def kill_nodes(folder: Path, rng: random.Random, outcome: Outcome, kills: int, clients: int) -> None:
    """Kill a random node of three, and start it again; each request goes to a random running node."""
    await anyio.Path(folder).mkdir(parents=True)
    file = folder / "lines"
    phases: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    bounds = Bounds(node_ttl=TTL)
    async with cluster(folder, bounds=bounds, **_settings(file)) as nodes, anyio.create_task_group() as group:
        made = Clients(nodes.http, rng, outcome, file, "n", lambda: rng.choice(nodes.urls))
        group.start_soon(made.run_all, clients)
        for _ in range(kills):
            await anyio.sleep(rng.random() * LATEST)
            phases.update(made.phases())
            victim = rng.randrange(nodes.size)
            nodes.kill(victim)
            await nodes.start(victim)
            outcome.rounds += 1
        await made.stop()
        for url in nodes.urls:
            counts = await _check(nodes.http, url, outcome, made.calls, file)
    _report(outcome, f"{kills} kills of a node", counts, phases)


async def _check(
    http: aiohttp.ClientSession, url: str, outcome: Outcome, calls: Iterable[Call], file: Path
) -> Counter[str]:
    """Compare the lines in the file with the recorded decisions and results; return the counts of both."""
    lines = await _lines(file)
    counts: Counter[str] = Counter()
    for made in calls:
        if not made.over:
            continue  # reported before
        task = await call(http, url, "GetTask", {"id": made.task["id"]})
        restarts = task.get("metadata", {}).get(EXTENSION_URI, {}).get("restarts", 0)
        is_failed = task["status"]["state"] == "TASK_STATE_FAILED" and restarts == MAX_RESTARTS
        is_completed = task["status"]["state"] == "TASK_STATE_COMPLETED"
        outcome.check(is_completed or is_failed, f"{made.key}: {task['status']}")
        facts = [each.get("metadata", {}).get(EXTENSION_URI, {}) for each in task["history"]]
        decisions = [each for fact in facts for each in fact.get("approvals", {}).get("decisions", ())]
        executed = {line: lines.pop(line, 0) for line in (made.line, made.edited_line)}
        if is_failed and not decisions:
            counts["failed"] += 1
            outcome.check(not any(executed.values()), f"{made.key}: executed without approval")
            continue
        if not outcome.check(len(decisions) == 1, f"{made.key}: the decisions {decisions} are recorded"):
            continue
        decision = decisions[0]["decision"]
        counts[decision] += 1
        outcome.check(decision in made.decisions, f"{made.key}: {decision} was not sent")
        line = {"approve": made.line, "edit": made.edited_line}.get(decision, "")
        times = executed.pop(line, 0)
        outcome.check(not any(executed.values()), f"{made.key}: {decision}, but {executed} ran")
        result = _results(task).get(decisions[0]["callId"], "")
        counts["failed"] += is_failed
        if not line:
            outcome.check("rejected" in result, f"{made.key}: rejected, with the result {result!r}")
        elif NOT_BEGUN in result:
            counts["not begun"] += 1
            outcome.check(is_failed and not times, f"{made.key}: not begun, but executed {times} times")
        elif LOST in result:
            counts["unknown"] += 1
            counts["unknown and executed"] += times
            outcome.check(times <= 1, f"{made.key}: executed {times} times, and reported as unknown")
        else:
            counts["executed"] += 1
            outcome.check(result == f"appended {line}", f"{made.key}: the result is {result!r}")
            outcome.check(times == 1, f"{made.key}: executed {times} times")
    outcome.check(not lines, f"lines of no call: {dict(lines)}")
    return counts


def _results(task: dict[str, Any]) -> dict[str, str]:
    """Return the results of tools in a task, by the ids of their calls."""
    messages = [*task["history"], *task.get("artifacts", ())]
    data = [part.get("data", {}) for each in messages for part in each.get("parts", ())]
    return {each["call_id"]: str(each["output"]) for item in data for each in item.get("tool_results", ())}


def _report(outcome: Outcome, name: str, counts: Counter[str], phases: Counter[str]) -> None:
    decisions = counts["approve"] + counts["edit"] + counts["reject"]
    outcome.figures.append(
        f"{name}, when {phases['request']} calls were requested, {phases['decision']} waited for a decision and "
        f"{phases['execution']} for their execution: {decisions} calls decided ({counts['approve']} approved, "
        f"{counts['edit']} edited, {counts['reject']} rejected), {counts['executed']} executed once, {counts['unknown']} "
        f"reported as unknown ({counts['unknown and executed']} of them executed), {counts['not begun']} "
        f"reported as not begun; {counts['failed']} tasks failed after {MAX_RESTARTS} crashes"
    )
    outcome.check(counts["executed"], f"{name}: no call was executed")

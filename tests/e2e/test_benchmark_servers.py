"""Each measurement of the whole-server benchmarks once, very small, with our server and with the relay."""

import sys
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.gateway import runner
from benchmarks.gateway.scenarios import SCENARIOS, named
from benchmarks.gateway.servers import OURS, RELAY, Command, Place, Running, running, running_upstream


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Generator[Running]:
    with running_upstream(tmp_path_factory.mktemp("upstream")) as found:
        yield found


@pytest.fixture(scope="module")
def servers(upstream: Running, tmp_path_factory: pytest.TempPathFactory) -> Generator[dict[str, Running]]:
    folder = tmp_path_factory.mktemp("servers")
    with running(OURS, upstream, folder) as ours, running(RELAY, upstream, folder) as relay:
        yield {"tailrace": ours, "relay": relay}


_TINY = {
    "burst": {"tokens": 50, "streams": 2, "rounds": 2},
    "paced": {"rate": 50, "streams": 3, "seconds": 0.2},
    "turns": {"streams": 2, "seconds": 0.1},
    "fan-out": {"tokens": 30, "streams": 3},
    "resume": {"tokens": 20, "rate": 500, "streams": 4, "rounds": 2},
    "resume-running": {"tokens": 30, "rate": 50, "streams": 4, "seconds": 0.3},
    "memory": {"streams": 2, "rate": 200},
    "store": {"tokens": 50, "streams": 1, "rounds": 1},
}
_OF_THE_RELAY = ("burst", "paced", "turns", "memory")


@pytest.mark.parametrize(
    ("measure", "server"),
    [*((each, "tailrace") for each in _TINY), *((each, "relay") for each in _OF_THE_RELAY)],
)
def test_a_measurement_is_made_and_nothing_is_lost(
    measure: str, server: str, servers: dict[str, Running], upstream: Running
) -> None:
    scenario = next(each for each in SCENARIOS if each.measure == measure)
    tiny = replace(scenario, **_TINY[measure])  # pyright: ignore[reportArgumentType]
    figures = runner.read(tiny.order(servers[server], upstream, seed=1))
    assert figures["lost"] == 0
    assert {tiny.metric, *tiny.also} <= set(figures)
    assert figures[tiny.metric] >= 0


def test_a_measurement_that_cannot_be_made_reports_the_reason(
    servers: dict[str, Running], upstream: Running
) -> None:
    order = named(["burst-100"])[0].order(servers["tailrace"], upstream, 0)
    with pytest.raises(RuntimeError, match="Connect"):
        runner.read(replace(order, port=1))


def test_a_server_that_does_not_start_reports_the_reason(upstream: Running, tmp_path: Path) -> None:

    def command(_: Place) -> Command:
        return Command([sys.executable, "-c", "1/0"])

    broken = replace(OURS, command=command)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"), running(broken, upstream, tmp_path):
        pytest.fail("the server started")

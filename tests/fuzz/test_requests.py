"""Mutated calls of every endpoint of a real server: no status of 5xx, no traceback, strict JSON, and a response in time.

A short form of ``make fuzz ARGS=--requests`` with the same cases every time. The bound on event-loop lag is higher:
other tests run at the same time.
"""

from pathlib import Path
from random import Random

import pytest

from fuzz.requests.calls import Call
from fuzz.requests.cases import Case
from fuzz.requests.request_fuzzer import Hunt
from fuzz.requests.seeds import create_fuzzed_app, seeds
from fuzz.requests.target import running_model
from support.random_seeds import EVERY_TIME_OTHERS
from tailrace.server import Settings
from tailrace.server.protocols.a2a.grpc_v0_3 import Grpc03
from tailrace.server.protocols.a2a.grpc_v1_0 import Grpc10
from tailrace.server.settings import ENDPOINTS

pytestmark = pytest.mark.no_cover

_MOST_BYTES = 300_000
_MOST_LAG = 0.5
_ROUNDS = 3


@pytest.mark.timeout(600)  # minimisation takes time
async def test_mutated_requests_get_a_response_that_is_no_server_error(tmp_path: Path) -> None:
    rng = Random() if EVERY_TIME_OTHERS else Random("requests")
    async with running_model() as model:
        hunt = Hunt(tmp_path, model.base_url, most_lag=_MOST_LAG)
        try:
            for _ in range(_ROUNDS):
                for at, seed in enumerate(seeds()):
                    case = Case.random(rng, most_bytes=_MOST_BYTES, seed=at)
                    fault = await hunt.attempt(seed.name, case.build())
                    assert fault is None, f"{fault}\n{case}"
        finally:
            fault = await hunt.close()
    assert fault is None
    assert hunt.calls == _ROUNDS * len(seeds())


def test_every_route_and_every_method_of_grpc_has_a_seed() -> None:
    settings = Settings(
        model="openai:x", base_url="http://127.0.0.1:9/v1", store="sqlite://", endpoints=ENDPOINTS
    )
    routes = {
        f"{method} {getattr(route, 'path', '')}"
        for route in create_fuzzed_app(settings).routes
        for method in (getattr(route, "methods", None) or ())
        if method != "HEAD"
    }
    methods = {
        f"gRPC /{version.descriptor.full_name}/{method.name}"
        for version in (Grpc10, Grpc03)
        for method in version.descriptor.methods
    }
    names = {seed.name for seed in seeds()} | {"POST /"}
    assert routes | methods <= names
    assert any(name.startswith("POST / 0.1 ") for name in names)


def test_a_case_is_the_same_every_time_and_a_call_survives_being_written_down() -> None:
    rng = Random(7)
    for _ in range(200):
        case = Case.random(rng, most_bytes=10_000)
        call = case.build()
        assert case.build() == call
        assert Call.from_json(call.to_json(), call.body) == call

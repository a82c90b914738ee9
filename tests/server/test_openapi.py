"""The description of the HTTP+JSON binding, and requests made from it: nothing undocumented comes back, and no 5xx."""

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, cast

import anyio.to_thread
import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, given
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode, checks
from schemathesis.specs.openapi import checks as openapi_checks

from support.http_json import HttpJson
from support.rpc import Rpc
from support.serving import serving
from tailrace.server import Settings, Turn, create_app
from tailrace.server.bindings.http_json import ROUTES
from tailrace.server.card import build_card
from tailrace.server.openapi import describe
from tailrace.streaming import ArtifactUpdate, Update
from tailrace.streaming.a2a.models import Artifact, Message

SETTINGS = Settings(store="sqlite://", openapi=True, push_allow_private=True)
_OPENAPI: Any = openapi_checks
CHECKS: list[Any] = [
    cast("Any", checks).not_a_server_error,
    _OPENAPI.status_code_conformance,
    _OPENAPI.content_type_conformance,
    _OPENAPI.response_schema_conformance,
]


async def echo(turn: Turn) -> AsyncIterator[Update | Message]:
    yield ArtifactUpdate(Artifact(artifact_id="text", parts=turn.message.parts))


async def test_the_description_is_served_where_it_is_wanted() -> None:
    async with serving(create_app(SETTINGS, handler=echo)) as url, Rpc(url) as rpc:
        assert await HttpJson(rpc).ok("GET", "/openapi.json") == describe()
    quiet = SETTINGS.model_copy(update={"openapi": False})
    async with serving(create_app(quiet, handler=echo)) as url, Rpc(url) as rpc:
        assert (await HttpJson(rpc).ask("GET", "/openapi.json"))[0] == 404


def test_every_address_is_described() -> None:
    paths = describe()["paths"]
    described = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert described == {(route.method, route.path) for route in ROUTES}
    names = [operation["operationId"] for methods in paths.values() for operation in methods.values()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    "mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=lambda mode: mode.name
)
async def test_only_what_is_described_comes_back(mode: GenerationMode) -> None:
    schema: Any = schemathesis.openapi.from_dict(describe())
    operations = [result.ok() for result in schema.get_all_operations()]
    asked: set[str] = set()

    def ask(operation: Any, url: str) -> None:
        @hypothesis.settings(
            max_examples=10,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=(
                HealthCheck.too_slow,
                HealthCheck.filter_too_much,
                HealthCheck.data_too_large,
            ),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def each(case: Any) -> None:
            response = case.call(base_url=url, timeout=20)
            asked.add(operation.label)
            case.validate_response(response, checks=CHECKS)

        # An address that takes nothing but text in its path cannot be asked wrongly.
        with suppress(Unsatisfiable):
            each()

    card = build_card(SETTINGS, "http://127.0.0.1/", has_extended=True)
    async with serving(create_app(SETTINGS, handler=echo, extended_card=card)) as url:
        for operation in operations:
            await anyio.to_thread.run_sync(ask, operation, url)
    assert len(asked) >= (len(ROUTES) if mode is GenerationMode.POSITIVE else 7), asked

"""The parts of uvicorn's protocol that `tailrace.server.http.connection_limits` relies on (decision 24)."""

import asyncio
import inspect
import logging
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from tailrace.server.http.connection_limits import ConnectionLimits

# The methods that the subclass overrides, with the parameters that uvicorn and httptools pass.
CALLBACKS = {
    "connection_made": ["self", "transport"],
    "data_received": ["self", "data"],
    "on_header": ["self", "name", "value"],
    "on_headers_complete": ["self"],
    "on_body": ["self", "body"],
    "on_message_complete": ["self"],
    "connection_lost": ["self", "exc"],
}


class Transport:
    """A transport that records the calls of `FlowControl`; any other method is an AttributeError."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")


class Connected(Transport):
    """A transport of which uvicorn also reads the addresses."""

    def get_extra_info(self, _name: str) -> None:
        return None


@pytest.mark.parametrize("name", CALLBACKS)
def test_uvicorn_defines_each_overridden_method_with_the_same_parameters(name: str) -> None:
    method: Any = vars(HttpToolsProtocol)[name]
    assert list(inspect.signature(method).parameters) == CALLBACKS[name]


def test_only_these_methods_are_overridden() -> None:
    ours = ConnectionLimits(0, 60).protocol()
    overridden = {name for name, each in vars(ours).items() if inspect.isfunction(each)} & {
        *dir(HttpToolsProtocol)
    }
    assert overridden == {*CALLBACKS}


async def test_the_flow_of_a_connection_is_created_when_it_is_made() -> None:
    config = uvicorn.Config(lambda *_: None, http=HttpToolsProtocol, log_config=None)
    config.load()
    logging.getLogger("uvicorn.error").setLevel(logging.INFO)
    protocol = HttpToolsProtocol(config, ServerState(), {}, asyncio.get_running_loop())
    assert getattr(protocol, "flow", None) is None
    transport: Any = Connected()
    protocol.connection_made(transport)
    assert type(protocol.flow) is FlowControl
    protocol.flow.pause_reading()
    assert transport.calls == ["pause"]


async def test_flow_control_uses_two_methods_of_the_transport() -> None:
    transport: Any = Transport()
    flow = FlowControl(transport)
    flow.pause_reading()
    flow.pause_reading()
    flow.pause_writing()
    flow.resume_writing()
    await flow.drain()
    flow.resume_reading()
    flow.resume_reading()
    assert transport.calls == ["pause", "resume"]

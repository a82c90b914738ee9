"""Errors that keep a server from starting, as the operator sees them."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from starlette.applications import Starlette

from tailrace.server import Settings
from tailrace.server.cli.serve import STARTUP_FAILURE, run_app
from tailrace.wrappers import ConfigurationError, StoreError

SETTINGS = Settings(model="openai:x", port=0)


def starting(*errors: Exception) -> Callable[[object], AbstractAsyncContextManager[None]]:
    """A lifespan that fails inside nested task groups."""

    @asynccontextmanager
    async def lifespan(_app: object) -> AsyncGenerator[None]:
        raise ExceptionGroup("outer", [ExceptionGroup("inner", errors)])
        yield

    return lifespan


def test_an_error_of_ours_at_the_start_is_raised_and_nothing_printed(
    capfd: pytest.CaptureFixture[str],
) -> None:
    for error in (ConfigurationError("no such program"), StoreError("no such place")):
        with pytest.raises(type(error), match="no such") as raised:
            run_app(Starlette(lifespan=starting(error)), SETTINGS)
        assert raised.value is error
    assert capfd.readouterr() == ("", "")


def test_any_other_error_at_the_start_is_shown_whole(capfd: pytest.CaptureFixture[str]) -> None:
    for errors in ((KeyError("x"),), (ConfigurationError("no such program"), KeyError("x"))):
        with pytest.raises(SystemExit) as raised:
            run_app(Starlette(lifespan=starting(*errors)), SETTINGS)
        assert raised.value.code == STARTUP_FAILURE
        assert "KeyError: 'x'" in capfd.readouterr().err

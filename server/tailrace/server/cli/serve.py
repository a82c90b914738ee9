"""``tailrace serve``: a model as an A2A agent."""

import signal
import sys
from typing import Annotated, Any

import typer
import uvicorn
from pydantic import ValidationError

from tailrace.server.app import create_app
from tailrace.server.settings import Settings
from tailrace.wrappers import ConfigurationError


def serve(
    model: Annotated[
        str | None, typer.Option(help="PROVIDER:MODEL, for example openai:gpt-5-mini. [TAILRACE_MODEL]")
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(help="Root of a compatible API. [TAILRACE_BASE_URL]")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on. [TAILRACE_HOST]")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on. [TAILRACE_PORT]")] = None,
    store: Annotated[
        str | None, typer.Option(help="sqlite:///FILE, or sqlite:// for memory. [TAILRACE_STORE]")
    ] = None,
    instructions: Annotated[
        str | None, typer.Option(help="System message of every conversation. [TAILRACE_INSTRUCTIONS]")
    ] = None,
) -> None:
    """Serve a model as an A2A agent until interrupted.

    Every option is also a TAILRACE_… setting, in the environment or a .env file.
    """
    settings = read_settings(
        model=model, base_url=base_url, host=host, port=port, store=store, instructions=instructions
    )
    run_app(create_app(settings), settings)


def read_settings(**given: Any) -> Settings:
    """Settings of the environment, over which the options that were given win.

    Raises:
        ConfigurationError: A value cannot be used; the message names the setting.
    """
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        problems = "; ".join(
            f"TAILRACE_{'.'.join(map(str, item['loc'])).upper()}: {item['msg']}" for item in error.errors()
        )
        raise ConfigurationError(problems) from None


def run_app(app: Any, settings: Settings) -> None:
    """Serve an application until SIGINT or SIGTERM; both end it in good order, with exit status 0."""
    # uvicorn repeats the signal once it has shut down: by then there is nothing left to end but the process.
    signal.signal(signal.SIGTERM, _exit)
    uvicorn.run(app, host=settings.host, port=settings.port, log_level="info", access_log=False)


def _exit(_signal: int, _frame: object) -> None:
    sys.exit(0)

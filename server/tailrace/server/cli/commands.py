"""The commands of ``tailrace`` and their options.

A command imports its module when it runs, so that ``--help`` is fast.
"""

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal

import typer

from tailrace.server.cli.interrupts import import_command


def create_cli(*, completion: bool = True) -> typer.Typer:
    """Create the command line.

    Args:
        completion: Add the options that install shell completion.
    """
    app = typer.Typer(
        name="tailrace",
        help="The stream of any LLM API in, an A2A agent out.",
        no_args_is_help=True,
        add_completion=completion,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # importing rich takes longer than the rest of --help
    )
    app.callback()(_tailrace)
    for command in (demo, serve, record, convert, ask, doctor, providers):
        app.command()(command)
    return app


def _show_version(requested: bool) -> None:
    if requested:
        print(f"tailrace {version('tailrace')}")  # noqa: T201
        raise typer.Exit


def _tailrace(
    _version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and exit."),
    ] = False,
) -> None:
    pass


def _complete_provider(incomplete: str) -> list[str]:
    """Complete the name of a provider. If the text is not empty, also complete aliases."""
    return list(_provider_names(incomplete))


def _complete_model(incomplete: str) -> list[str]:
    """Complete the provider in ``PROVIDER:MODEL``."""
    return [f"{name}:" for name in _provider_names(incomplete)]


def _provider_names(incomplete: str) -> Iterator[str]:
    from tailrace.wrappers.providers import providers

    for provider in providers():
        for name in (provider.name, *(provider.aliases if incomplete else ())):
            if name.startswith(incomplete):
                yield name


Model = Annotated[
    str | None,
    typer.Option(
        help="PROVIDER:MODEL, for example openai:gpt-5-mini. [TAILRACE_MODEL]",
        autocompletion=_complete_model,
    ),
]
Agent = Annotated[
    str | None, typer.Option(help="URL of a remote A2A agent to serve instead of a model. [TAILRACE_AGENT]")
]
BaseUrl = Annotated[
    str | None,
    typer.Option(help="Base URL of a compatible API. [TAILRACE_BASE_URL; default: the provider's]"),
]
Host = Annotated[
    str | None,
    typer.Option(help="Address to listen on. [TAILRACE_HOST; default: 127.0.0.1]"),
]
Port = Annotated[int | None, typer.Option(help="Port to listen on. [TAILRACE_PORT; default: 8000]")]
StoreUrl = Annotated[
    str | None,
    typer.Option(
        help="sqlite:///FILE, sqlite:// for memory, or postgresql://…. [TAILRACE_STORE; default: sqlite:///tailrace.db]",
    ),
]
EnvFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="File with TAILRACE_… settings, one NAME=VALUE per line. [default: none]"
    ),
]


def demo(
    once: Annotated[bool, typer.Option("--once", help="Stop after one response.")] = False,
    prompt: Annotated[
        str | None,
        typer.Option(
            help="The message to send. [default: Why is the sky blue? Explain it to a child in four sentences.]",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Port to listen on; 0 for a free one. [default: 8000, or a free one if it is taken]",
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(help="sqlite:///FILE that stores the tasks. [default: a temporary file]"),
    ] = None,
    recorded: Annotated[
        bool, typer.Option("--recorded", help="Replay a recorded response instead of running the model.")
    ] = False,
    cut: Annotated[
        bool,
        typer.Option(
            "--cut",
            help="Close the connection to the model in the middle of the response, which is continued.",
        ),
    ] = False,
) -> None:
    """Run a small real model on this machine behind an A2A server, send a prompt, and show the events as they stream.

    Requires no key. If the model cannot run (for example, without the packages of tailrace[demo]), the command replays a recorded
    response. The server runs until Ctrl-C, unless --once is given. Exit status: 0 if the task completed, and the operation
    GetTask returned the same status and text, 130 if the command was interrupted before the response was complete, 2 after an
    error (for example, if the port is in use), 1 otherwise.
    """
    run = import_command("demo")
    raise typer.Exit(run(prompt, port=port, store=store, recorded=recorded, cut=cut, once=once))


def serve(
    model: Model = None,
    agent: Agent = None,
    base_url: BaseUrl = None,
    host: Host = None,
    port: Port = None,
    grpc_port: Annotated[
        int | None,
        typer.Option(help="Port to listen on for gRPC. [TAILRACE_GRPC_PORT; default: no gRPC]"),
    ] = None,
    store: StoreUrl = None,
    events: Annotated[
        str | None,
        typer.Option(
            help="redis://HOST:PORT/0 of a Valkey that several servers share. [TAILRACE_EVENTS; default: none]",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Number of processes; more than one requires --events. [TAILRACE_WORKERS; default: 1]"
        ),
    ] = None,
    allow_anonymous: Annotated[
        bool | None,
        typer.Option(
            "--allow-anonymous",
            help="Serve every client on the network without authentication. [TAILRACE_ALLOW_ANONYMOUS; default: local clients only]",
        ),
    ] = None,
    instructions: Annotated[
        str | None,
        typer.Option(help="System message of every conversation. [TAILRACE_INSTRUCTIONS; default: none]"),
    ] = None,
    tools: Annotated[
        list[str] | None,
        typer.Option(
            help="Tool of the model: MODULE:NAME, mcp:URL or 'mcp:COMMAND ARGUMENTS'; can be repeated. "
            "[TAILRACE_TOOLS; default: none]",
        ),
    ] = None,
    approve: Annotated[
        list[str] | None,
        typer.Option(
            help="Tool whose calls run only after an approval: NAME, *, mcp:destructive or MODULE:FUNCTION; can be repeated. "
            "[TAILRACE_APPROVALS; default: none]",
        ),
    ] = None,
    on_crash: Annotated[
        str | None,
        typer.Option(
            help="Treatment of a response that a crash or a stop interrupted: continue, restart or fail. "
            "[TAILRACE_ON_CRASH; default: continue]",
        ),
    ] = None,
    on_lost_result: Annotated[
        str | None,
        typer.Option(
            help="Treatment of a tool call that a crash interrupted, unless the tool is idempotent: error, ask or fail. "
            "[TAILRACE_ON_LOST_RESULT; default: error]",
        ),
    ] = None,
    fallback: Annotated[
        list[str] | None,
        typer.Option(
            help="Model that answers when --model fails: PROVIDER:MODEL[@BASE_URL]; can be repeated. "
            "[TAILRACE_FALLBACK; default: none]",
        ),
    ] = None,
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="FILE",
            help="File of words and /regular expressions/; matches are replaced with [blocked] in all output. request-schema "
            "instead enforces the JSON schemas of requests. Can be repeated. [TAILRACE_FILTERS; default: none]",
        ),
    ] = None,
    input_filters: Annotated[
        Path | None,
        typer.Option(
            "--input-filter",
            help="File of words and /regular expressions/; messages with one of them are refused. "
            "[TAILRACE_INPUT_FILTERS; default: none]",
        ),
    ] = None,
    env_file: EnvFile = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File (TOML) with several agents to serve, read again on SIGHUP. [default: none]",
        ),
    ] = None,
) -> None:
    """Serve a model, or the agents of a configuration file, over A2A until interrupted.

    Every option except --config and --env-file is also a TAILRACE_… setting, in the environment or in the file of --env-file.
    """
    run = import_command("serve")
    run(
        env_file,
        config,
        model=model,
        agent=agent,
        base_url=base_url,
        host=host,
        port=port,
        grpc_port=grpc_port,
        store=store,
        events=events,
        workers=workers,
        allow_anonymous=allow_anonymous,
        instructions=instructions,
        tools=tools,
        approvals=approve,
        on_crash=on_crash,
        on_lost_result=on_lost_result,
        fallback=fallback,
        filters=filters,
        input_filters=input_filters,
    )


def record(
    folder: Annotated[
        Path, typer.Argument(help="Folder of the recordings. [TAILRACE_RECORD]", show_default=False)
    ],
    model: Model = None,
    base_url: BaseUrl = None,
    host: Host = None,
    port: Port = None,
    store: StoreUrl = None,
    env_file: EnvFile = None,
) -> None:
    """Serve a model like `tailrace serve`, and record each response of the model in a folder.

    `--model replay:FOLDER` replays the recordings without the provider. A recording contains the conversation, but no headers and
    no keys. Set other options of `tailrace serve` with TAILRACE_… settings.
    """
    run = import_command("serve")
    run(env_file, record=folder, model=model, base_url=base_url, host=host, port=port, store=store)


def convert(
    file: Annotated[
        Path,
        typer.Argument(
            help="The recorded body; standard input if - or omitted.", allow_dash=True, show_default=False
        ),
    ] = Path("-"),
    provider: Annotated[
        str | None,
        typer.Option(
            help="Provider of the stream (see `tailrace providers`). [default: detected automatically]",
            autocompletion=_complete_provider,
        ),
    ] = None,
    to: Annotated[
        Literal["events", "task", "message", "openai"],
        typer.Option(help="A2A events as JSON lines, the final task, the message, or one chat.completion."),
    ] = "events",
    think_tags: Annotated[
        bool,
        typer.Option(help="Separate reasoning in <think> tags at the beginning of a text from the text."),
    ] = True,
    dialect: Annotated[
        Literal["1.0", "0.3", "0.1"],
        typer.Option(help="The version of A2A to write; 0.1 for all versions before 0.2."),
    ] = "1.0",
) -> None:
    """Convert a recorded provider stream (the bytes of a response body) to A2A.

    An incomplete stream is converted as far as it is available; a terminal event with the reason follows, and the exit status is
    0. If the input cannot be read, or is not a provider stream, the exit status is 2, and standard error has one line.
    """
    run = import_command("convert")
    run(file, provider=provider, to=to, think_tags=think_tags, version=dialect)


def ask(
    url: Annotated[str, typer.Argument(help="URL of the agent, for example http://127.0.0.1:8000")],
    prompt: Annotated[
        str, typer.Argument(help="The message; - reads it from standard input.", show_default=False)
    ] = "",
    context: Annotated[
        str, typer.Option(help="Id of the conversation to continue. [default: a new conversation]")
    ] = "",
    task: Annotated[
        str, typer.Option(help="Id of a task that waits for this message. [default: a new task]")
    ] = "",
    resume: Annotated[
        str,
        typer.Option(
            metavar="TASK", help="Follow this task instead of sending a message.", show_default=False
        ),
    ] = "",
    approve: Annotated[
        str,
        typer.Option(
            metavar="DIGEST",
            help="Approve a tool call of the task (--task), by its digest.",
            show_default=False,
        ),
    ] = "",
    reject: Annotated[
        str,
        typer.Option(
            metavar="DIGEST",
            help="Reject a tool call of the task (--task), by its digest.",
            show_default=False,
        ),
    ] = "",
    reason: Annotated[
        str, typer.Option(help="Reason of --reject, for the model. [default: none]", show_default=False)
    ] = "",
    arguments: Annotated[
        str,
        typer.Option(
            metavar="JSON", help="Arguments that replace those of the call of --approve.", show_default=False
        ),
    ] = "",
    history: Annotated[
        bool, typer.Option("--history", help="Show the earlier messages of the conversation (--context).")
    ] = False,
    markdown: Annotated[
        bool | None,
        typer.Option(
            "--markdown/--plain", help="Render the Markdown of the response. [default: on a terminal]"
        ),
    ] = None,
    token: Annotated[
        str,
        typer.Option(
            envvar="TAILRACE_TOKEN",
            help="Bearer token, or the API key that the agent card requires.",
            show_default=False,
        ),
    ] = "",
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="https://HOST, besides that of the URL, to which the agent card may direct requests; can be "
            "repeated. [default: none]",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the events as JSON lines.")] = False,
) -> None:
    """Send a message to an A2A agent, and print its response as it streams.

    The response is printed to standard output, and everything else to standard error. On a terminal, the Markdown of the response
    is rendered, and control characters are escaped. In a file or a pipe, the response is unchanged, unless --markdown is given.
    After a lost connection, the stream is resumed. Ctrl-C cancels the task. Exit status: 0 completed, 1
    failed, canceled, rejected or no response, 2 invalid arguments or an error (for example, the agent cannot be reached), 3 the
    agent waits for input, an approval or a login, 130 interrupted.
    """
    run = import_command("ask")
    status = run(
        url,
        prompt,
        context=context,
        task=task,
        resume=resume,
        approve=approve,
        reject=reject,
        reason=reason,
        arguments=arguments,
        history=history,
        markdown=markdown,
        token=token,
        allow_origin=allow_origin or (),
        as_json=as_json,
    )
    raise typer.Exit(status)


def doctor(
    model: Model = None,
    agent: Agent = None,
    base_url: BaseUrl = None,
    host: Host = None,
    port: Port = None,
    store: StoreUrl = None,
    question: Annotated[
        bool, typer.Option("--ask/--no-ask", help="Ask the model a short question, which costs a few tokens.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON lines.")] = False,
    env_file: EnvFile = None,
) -> None:
    """Check whether a server can run here (versions, settings, key, model, store, ports), and print advice.

    Exit status: 0 no check failed, 1 a check failed, 2 the settings are invalid.
    """
    run = import_command("doctor")
    status = run(
        env_file,
        as_json=as_json,
        ask_model=question,
        model=model,
        agent=agent,
        base_url=base_url,
        host=host,
        port=port,
        store=store,
    )
    raise typer.Exit(status)


def providers(
    as_json: Annotated[bool, typer.Option("--json", help="Print the providers as JSON lines.")] = False,
) -> None:
    """List all providers with their formats, capabilities, and environment variables for the key and the base URL.

    The name of a model is PROVIDER:MODEL, where PROVIDER is the name or an alias of a provider.
    """
    import_command("providers")(as_json=as_json)

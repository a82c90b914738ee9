"""``tailrace providers``: the providers, their formats, and the keys that are set in the environment."""

import os

from rich.console import Console
from rich.table import Table

from tailrace.wrappers.providers import Provider, providers


def list_providers() -> None:
    """List all providers: format, capabilities, and the variables of key and base URL.

    A model is named PROVIDER:MODEL, by a provider's name or one of its aliases.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in (
        "provider",
        "aliases",
        "format",
        "tool arguments",
        "reasoning",
        "sends",
        "streams",
        "key",
        "address",
    ):
        table.add_column(title, overflow="fold")
    for provider in providers():
        wire = provider.wire_format
        table.add_row(
            provider.name,
            ", ".join(provider.aliases),
            wire.title,
            wire.arguments,
            wire.reasoning,
            ", ".join(("text", "tools", *wire.sends)),
            ", ".join(("text", "tools", *wire.streams)),
            _key(provider),
            _address(provider),
        )
    # A pipe has no width: rows are not wrapped.
    console = Console()
    if not console.is_terminal:
        console = Console(width=400)
    console.print(table)


def _key(provider: Provider) -> str:
    found = next((name for name in provider.key_variables if os.environ.get(name)), None)
    if found is not None:
        return f"{found} (set)"
    return " or ".join(provider.key_variables) or (
        "AWS credentials" if provider.format == "bedrock" else "none"
    )


def _address(provider: Provider) -> str:
    variable = provider.base_url_variable
    if variable and os.environ.get(variable):
        return f"{variable} (set)"  # not its value, which may be a password
    usual = provider.base_url or ("" if provider.base_url_suffix else "its own")
    return " or ".join(filter(None, (usual, variable)))

"""``tailrace providers``: the providers, their formats, and the keys that are set in the environment."""

import json
import os
from textwrap import fill

from rich.console import Console

from tailrace.wrappers.providers import Provider, WireFormat
from tailrace.wrappers.providers import providers as registered

_WIDTH = 80
_INDENT = 19 * " "


def providers(*, as_json: bool = False) -> None:
    """Print the providers by format, in lines of 80 columns.

    Args:
        as_json: True to print one JSON object per line instead, with all capabilities.
    """
    available = list(registered())
    if as_json:
        for provider in available:
            print(json.dumps(_fields(provider)))  # noqa: T201
        return
    console = Console(highlight=False, soft_wrap=True)
    for title in dict.fromkeys(provider.wire_format.title for provider in available):
        group = [provider for provider in available if provider.wire_format.title == title]
        console.print(title, style="bold")
        console.print(fill(_capabilities(group[0].wire_format), _WIDTH), style="dim")
        for provider in group:
            _print_provider(console, provider)
        console.print()


def _print_provider(console: Console, provider: Provider) -> None:
    key, address = _key(provider), _address(provider)
    row = f"  {provider.name:<16} {key:<24} {address}"
    if len(row) > _WIDTH:
        row = f"  {provider.name:<16} {key}\n{_INDENT}{address}"
    console.print(row)
    if provider.aliases:
        aliases = f"also {', '.join(provider.aliases)}"
        console.print(fill(aliases, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT), style="dim")


def _capabilities(wire: WireFormat) -> str:
    sends, streams = (", ".join(names) or "only text" for names in (wire.sends, wire.streams))
    return f"sends {sends}; streams {streams}; tool arguments: {wire.arguments}; reasoning: {wire.reasoning}"


def _fields(provider: Provider) -> dict[str, object]:
    wire = provider.wire_format
    return {
        "provider": provider.name,
        "aliases": provider.aliases,
        "format": wire.title,
        "tool_arguments": wire.arguments,
        "reasoning": wire.reasoning,
        "sends": ("text", "tools", *wire.sends),
        "streams": ("text", "tools", *wire.streams),
        "key": _key(provider),
        "address": _address(provider),
    }


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
        return f"{variable} (set)"  # the value is not printed, because it may contain a password
    usual = provider.base_url or ("" if provider.base_url_suffix else "its own")
    return " or ".join(filter(None, (usual, variable)))

"""Completion of option values in the shell."""

from collections.abc import Iterator

from tailrace.wrappers.providers import providers


def complete_provider(incomplete: str) -> list[str]:
    """Complete names of providers; aliases only when the text begins with one."""
    return list(_names(incomplete))


def complete_model(incomplete: str) -> list[str]:
    """Complete the provider in front of a model's name; the models are known to the provider only."""
    return [f"{name}:" for name in _names(incomplete)]


def _names(incomplete: str) -> Iterator[str]:
    for provider in providers():
        for name in (provider.name, *(provider.aliases if incomplete else ())):
            if name.startswith(incomplete):
                yield name

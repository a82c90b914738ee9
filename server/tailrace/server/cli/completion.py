"""What the shell is offered where a value of an option is begun."""

from collections.abc import Iterator

from tailrace.wrappers.providers import providers


def complete_provider(incomplete: str) -> list[str]:
    """Names of providers; their aliases, too, once something is typed that one begins with."""
    return list(_names(incomplete))


def complete_model(incomplete: str) -> list[str]:
    """Providers as they stand before a model's name; which models there are, they alone know."""
    return [f"{name}:" for name in _names(incomplete)]


def _names(incomplete: str) -> Iterator[str]:
    for provider in providers():
        for name in (provider.name, *(provider.aliases if incomplete else ())):
            if name.startswith(incomplete):
                yield name

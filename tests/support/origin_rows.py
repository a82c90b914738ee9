"""The sentences of the project's original documents, each with its test, and the page that lists them."""

from collections.abc import Callable
from importlib import import_module
from inspect import getmembers, isfunction
from typing import Any, NamedTuple, TypeVar

Test = TypeVar("Test", bound=Callable[..., Any])

DOCUMENTS = {
    "test_overview": "The project's description",
    "test_message_mapping": "A2A to OpenAI message mapping",
    "test_task_bridge": "A2A task bridge",
    "test_openai_converter": "OpenAI converter: chunks and history",
    "test_message_handling": "Message handling of agents and mappers",
    "test_sdk_data_model": "A2A server on the official SDK: data model",
}
"""The module in ``tests/origins`` with the tests of each document, and the document's topic."""

_HEAD = """# Seed documents

Look up where a sentence of the project's seed documents is implemented: five documents by other projects, and the project's own
description. Each row has the sentence, the public name that implements it, and the test that checks it. The last column states
intended differences and their reasons. [Concepts](concepts.md) is the guide to the same names.

The tables are generated from the tests. To write them again:

```sh
python tests/test_docs.py
```
"""


class Row(NamedTuple):
    """A sentence of a document.

    Attributes:
        sentence: The sentence, abridged.
        name: The public name that implements it, or a file or folder of the project.
        differs: How and why tailrace differs; empty if it does not.
    """

    sentence: str
    name: str
    differs: str


def row(sentence: str, *, name: str, differs: str = "") -> Callable[[Test], Test]:
    """Decorate a test with the sentence that it verifies; several may be stacked.

    Args:
        sentence: The sentence, abridged.
        name: The public name that implements it, with its module; or a path in the repository.
        differs: How and why tailrace differs.
    """

    def keep(test: Test) -> Test:
        # Decorators are applied from the last to the first.
        vars(test).setdefault("origin_rows", []).insert(0, Row(sentence, name, differs))
        return test

    return keep


def rows_of(module: str) -> list[tuple[Row, str]]:
    """The rows of a document with the names of their tests, in the order of the module."""
    tests = [test for _, test in getmembers(import_module(f"origins.{module}"), isfunction)]
    tests = [test for test in tests if hasattr(test, "origin_rows")]
    tests.sort(key=lambda test: test.__code__.co_firstlineno)
    return [(each, test.__name__) for test in tests for each in vars(test)["origin_rows"]]


def origins_page() -> str:
    """The page ``docs/origins.md``."""
    sections = [_HEAD]
    for module, topic in DOCUMENTS.items():
        lines = [
            f"## {topic}",
            "",
            "| sentence | public name | test | differs |",
            "|---|---|---|---|",
        ]
        for (sentence, name, differs), test in rows_of(module):
            where = f"`tests/origins/{module}.py::{test}`"
            cells = (sentence, f"`{name}`", where, differs)
            lines.append("| " + " | ".join(each.replace("|", "\\|") for each in cells) + " |")
        sections.append("\n".join(lines) + "\n")
    return "\n".join(sections)

import pytest

from checks.prose import Prose


def prose(text: str) -> dict[str, list[str]]:
    found = Prose()
    found.add_text(text, "page.md", 1)
    return found.places


def module(source: str) -> dict[str, list[str]]:
    found = Prose()
    found.add_source(source, "module.py")
    return found.places


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("person", "Whoever reads it gets all of it."),
        ("person", "It is somebody's own task."),
        ("speech", "The server says that it is full."),
        ("clause", "Return what is stored."),
        ("clause", "Only that which comes later counts."),
    ],
)
def test_idioms_are_found(kind: str, text: str) -> None:
    assert len(prose(f"First.\n{text}")[kind]) == 1
    assert prose(f"First.\n{text}")[kind][0].startswith("page.md:2: ")


@pytest.mark.parametrize(
    "text",
    [
        "Return the stored events after `number`.",
        "The code `what is said` and\n```sh\necho whoever says\n```\nare not prose.",
        "See [the page](what-is-a2a.md).",
    ],
)
def test_plain_sentences_and_code_pass(text: str) -> None:
    assert not any(prose(text).values())


def test_rates_are_per_thousand_words_and_per_cent_of_docstrings() -> None:
    found = Prose()
    found.add_source('"""What a module has."""\n\n\ndef name() -> None:\n    """Return it."""\n', "module.py")
    found.add_text("word " * 493 + "said", "page.md", 1)
    assert found.rates()["speech"] == 2.0
    assert found.rates()["question"] == 50.0


@pytest.mark.parametrize(
    "source",
    ["def asked() -> None: ...", "is_said = 1", "class LaneOpened: ...", "def f(told: int) -> None: ..."],
)
def test_identifiers_of_the_idiom_are_found(source: str) -> None:
    assert len(module(source)["identifier"]) == 1


def test_other_identifiers_pass() -> None:
    assert module("def task_of(mending: int) -> None:\n    x = asked\n")["identifier"] == []


def test_docstrings_of_attributes_and_comments_are_read() -> None:
    places = module('LIMIT = 3  # whoever asks\n"""How many may be open."""\n')
    assert len(places["person"]) == 1
    assert places["question"] == ["module.py:2: How many may be open."]

"""The search of the documentation site ranks pages as the theme does.

The expected orders are those of the search worker of mkdocs-material 9 with the same index.
"""

from typing import Any

from checks.site_search import SearchIndex

FIELDS = {"title": {"boost": 1000.0}, "text": {"boost": 1.0}, "tags": {"boost": 1000000.0}}
CONFIG = {"lang": ["en"], "separator": r"[\s\-]+", "pipeline": ["stopWordFilter"], "fields": FIELDS}


def index(*entries: tuple[str, str, str]) -> SearchIndex:
    docs = [{"location": location, "title": title, "text": text} for location, title, text in entries]
    return SearchIndex({"config": CONFIG, "docs": docs})


def test_a_word_in_a_title_counts_more_than_many_in_a_text():
    found = index(("a.html", "Proxies", "<p>nginx nginx nginx</p>"), ("b.html", "nginx", "<p>A server</p>"))
    assert found.search("nginx") == ["b.html", "a.html"]


def test_the_title_of_a_page_counts_more_than_that_of_a_section():
    found = index(
        ("a.html", "Proxies", ""), ("a.html#scaling", "Scaling", ""), ("b.html", "Scaling", "<p>Nodes</p>")
    )
    assert found.search("scaling") == ["b.html", "a.html"]


def test_a_section_is_found_as_its_page_and_once():
    found = index(
        ("a.html", "Tools", "<p>tool</p>"),
        ("a.html#add", "Add a tool", ""),
        ("b.html", "Agents", "<p>Call a tool.</p>"),
    )
    assert found.search("add a tool") == ["a.html", "b.html"]


def test_words_match_by_their_beginning():
    found = index(("a.html", "React: the AI SDK", ""), ("b.html", "Preact", ""))
    assert found.search("reac") == ["a.html"]


def test_stop_words_are_in_no_index():
    assert index(("a.html", "What is it?", "<p>That is what it was.</p>")).search("what") == []


def test_a_page_with_a_lower_boost_comes_later():
    entries: list[dict[str, Any]] = [
        {"location": "a.html", "title": "OpenAI and the openai package", "text": "", "boost": 0.25},
        {"location": "b.html", "title": "OpenAI", "text": ""},
    ]
    assert SearchIndex({"config": CONFIG, "docs": entries}).search("openai") == ["b.html", "a.html"]

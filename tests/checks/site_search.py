"""``python -m checks.site_search``: search the built site for common terms. Part of ``make docs``.

Reads ``build/site/search/search_index.json`` and ranks pages as the theme's search does in the browser: lunr 2.3 with the options
of mkdocs-material, as published in its ``integrations/search`` (Okapi BM25 without length normalization, a wildcard after every
of mkdocs-material, as published in its ``integrations/search`` (Okapi BM25 without length normalization, a wildcard after every
first.
"""

import json
import math
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

INDEX = Path(__file__).parents[2] / "build/site/search/search_index.json"

SEARCHES = {
    "what is a2a": "concepts.html",
    "react": "ai-sdk.html",
    "openai": "openai.html",
    "add a tool": "tools.html",
    "custom handler": "embedding.html",
    "authentication": "authentication.html",
    "push notifications": "push.html",
    "scale": "scaling.html",
    "nginx": "proxies.html",
    "reverse proxy": "proxies.html",
    "docker": "deploy.html",
    "grafana": "observability.html",
}
"""Searches, each with the page that must be first."""

STOP_WORDS = frozenset(
    "a able about across after all almost also am among an and any are as at be because been but by can cannot could dear did do "
    "does either else ever every for from get got had has have he her hers him his how however i if in into is it its just least "
    "let like likely may me might most must my neither no nor not of off often on only or other our own rather said say says she "
    "should since so some than that the their them then there these they this tis to too twas us wants was we were what when where "
    "which while who whom why will with would yet you your".split()
)
"""The words that lunr omits from an index."""

_K1 = 1.2
_TAG = re.compile(r"<[^>]*>")


class SearchIndex:
    """The search index of a built site.

    Args:
        index: The content of ``search_index.json``.
    """

    def __init__(self, index: Mapping[str, Any]) -> None:
        self._separator = re.compile(index["config"]["separator"])
        self._entries: Sequence[Mapping[str, Any]] = index["docs"]
        boosts = {name: field["boost"] for name, field in index["config"]["fields"].items()}
        # For each term: the fields of entries that contain it, with their weights.
        counts: dict[str, list[tuple[int, str, int]]] = defaultdict(list)
        for position, entry in enumerate(self._entries):
            for name in boosts:
                for term, count in Counter(self._terms(entry.get(name, ""))).items():
                    counts[term].append((position, name, count))
        self._weights = {
            term: [
                (
                    position,
                    boosts[name] * _idf(len(found), len(self._entries)) * (_K1 + 1) * count / (_K1 + count),
                )
                for position, name, count in found
            ]
            for term, found in counts.items()
        }

    def search(self, query: str) -> list[str]:
        """Return the matching pages, the best first."""
        words = [word for word in self._separator.split(query.lower()) if word]
        scores: dict[int, float] = defaultdict(float)
        matched: dict[int, set[str]] = defaultdict(set)
        for term, weights in self._weights.items():
            prefixes = {word for word in words if term.startswith(word)}
            for position, weight in weights if prefixes else ():
                scores[position] += weight * sum(word in prefixes for word in words)
                matched[position] |= prefixes
        for position in scores:
            scores[position] *= self._entries[position].get("boost", 1)
            counted = [word for word in words if word in matched[position] or word not in STOP_WORDS]
            boost = ("#" not in self._location(position)) + len(matched[position]) / len(set(counted))
            scores[position] *= 1 + boost**2
        best = sorted(scores, key=lambda position: -scores[position])
        return list(dict.fromkeys(self._location(position).partition("#")[0] for position in best))

    def _location(self, position: int) -> str:
        return self._entries[position]["location"]

    def _terms(self, value: str | Sequence[str]) -> Iterable[str]:
        text = value if isinstance(value, str) else " ".join(value)
        terms = self._separator.split(_TAG.sub(" ", text).lower())
        return (term for term in terms if term and term not in STOP_WORDS)


def _idf(fields_with_term: int, entries: int) -> float:
    return math.log(1 + abs((entries - fields_with_term + 0.5) / (fields_with_term + 0.5)))


def main() -> int:
    """Search for every term; return 1 if a page is not first."""
    index = SearchIndex(json.loads(INDEX.read_text(encoding="utf-8")))
    failed = False
    for query, page in SEARCHES.items():
        found = index.search(query)
        if "--list" in sys.argv:
            print(f"{query}: {', '.join(found[:5])}")
        if found[:1] != [page]:
            failed = True
            print(
                f"searching for {query!r} finds {found[:1] or 'nothing'} first, not {page}", file=sys.stderr
            )
    return failed


if __name__ == "__main__":
    sys.exit(main())

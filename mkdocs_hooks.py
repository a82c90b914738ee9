"""Additions to MkDocs for the documentation site (``mkdocs.yml``).

Files of the repository outside of ``docs/`` that pages link to become pages, under ``repository/``. State diagrams are drawn
here, so that no script has to be loaded. Every page is also in the site as Markdown, beside its HTML, for programs
(``llms.txt``). The search uses the titles of the navigation. A site that would load anything from another host is an error.
"""

import json
import posixpath
import re
import shutil
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any, cast

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent
DOCS = "docs"
REPOSITORY = "repository"
"""The folder of the site for files of the repository."""

ALWAYS = ("CHANGELOG.md", "CONTRIBUTING.md", "SKILL.md")
"""Files in the navigation."""

BEHIND_GUIDES = ("decisions/", "reference/", f"{REPOSITORY}/")
"""Folders of pages that the search lists after the others."""

LANGUAGES = {".py": "python", ".js": "javascript", ".json": "json", ".toml": "toml", ".yaml": "yaml"}

_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)\s#]+)(?=[)#])")
_FOREIGN = re.compile(r"""<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)="?(?:https?:)?//[^\s">]+""")
_FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
_Nav = list[str | dict[str, "str | _Nav"]]
_titles: dict[str, str] = {}
"""The titles of the navigation, by the address of their page."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files of the repository that pages link to, directly or through other such files."""
    waiting = {path for file in files.documentation_pages() for path in _linked(f"{DOCS}/{file.src_uri}")}
    waiting |= set(ALWAYS)
    known: set[str] = set()
    while waiting:
        path = waiting.pop()
        known.add(path)
        shown = InclusionLevel.INCLUDED if path in ALWAYS else InclusionLevel.NOT_IN_NAV
        files.append(File.generated(config, _place(path), content=_as_page(path), inclusion=shown))
        if path.endswith(".md"):
            waiting |= _linked(path) - known
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between places in the repository into links between places in the site, and rank the page in the search."""
    here = page.file.src_uri
    if here.startswith(BEHIND_GUIDES):
        page.meta.setdefault("search", {"boost": 0.25})
    source = here.removeprefix(f"{REPOSITORY}/") if here.startswith(f"{REPOSITORY}/") else f"{DOCS}/{here}"

    def moved(link: re.Match[str]) -> str:
        path = _resolved(source, link[1])
        place = path.removeprefix(f"{DOCS}/") if path.startswith(f"{DOCS}/") else _place(path)
        return posixpath.relpath(place, posixpath.dirname(here) or ".")

    return _outside_of_code(markdown, moved)


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> None:
    """Note the titles that the navigation gives to pages."""
    _titles.clear()
    for title, path in _titled(cast("_Nav", config["nav"])):
        file = files.get_file_from_path(path)
        if file is not None:
            _titles[file.url] = title


def on_post_build(config: MkDocsConfig) -> None:
    """Copy the Markdown of pages beside their HTML, title the search, and check that nothing is loaded from other hosts."""
    site = Path(config.site_dir)
    _title_search(site / "search/search_index.json")
    copies = {page: site / page.relative_to(ROOT / DOCS) for page in (ROOT / DOCS).rglob("*.md")}
    copies |= {ROOT / path: site / _place(path) for path in ALWAYS}
    for page, copy in copies.items():
        shutil.copyfile(page, copy)
    for page in site.rglob("*.html"):
        if found := _FOREIGN.search(page.read_text(encoding="utf-8")):
            raise PluginError(f"{page.relative_to(site)} loads from another host: {found[0]}")


def _titled(nav: _Nav) -> Iterator[tuple[str, str]]:
    """The titles and paths of a part of the navigation."""
    for entry in nav:
        for title, target in () if isinstance(entry, str) else entry.items():
            if isinstance(target, str):
                yield title, target
            else:
                yield from _titled(target)


def _title_search(path: Path) -> None:
    """Give the pages in the search index the titles of the navigation: the terms that readers search for."""
    index = json.loads(path.read_text(encoding="utf-8"))
    for entry in index["docs"]:
        entry["title"] = _titles.get(entry["location"], entry["title"])
    path.write_text(json.dumps(index, separators=(",", ":")), encoding="utf-8")


def _as_page(path: str) -> str:
    if (ROOT / path).is_dir():
        names = sorted(each.name for each in (ROOT / path).iterdir() if each.name[0] not in "._")
        return "\n".join([f"# `{path}/`\n", *(f"- `{name}`" for name in names)])
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".md"):
        return _FRONT_MATTER.sub("", text)
    fence = f"```{LANGUAGES.get(Path(path).suffix, '')}\n{text}\n```"
    return f"---\nsearch:\n  exclude: true\n---\n# `{path}`\n\n{fence}\n"


def _place(path: str) -> str:
    """The path in the site of a file of the repository."""
    return f"{REPOSITORY}/{path}" if path.endswith(".md") else f"{REPOSITORY}/{path}.md"


def _linked(source: str) -> set[str]:
    """The files outside of ``docs/`` that a page links to."""
    text = _FENCED.sub("", (ROOT / source).read_text(encoding="utf-8"))
    paths = {_resolved(source, link) for link in _LINK.findall(text)}
    return {path for path in paths if not path.startswith(f"{DOCS}/") and (ROOT / path).exists()}


def _resolved(source: str, link: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), link))


def _outside_of_code(markdown: str, replace: Any) -> str:
    pieces: list[str] = []
    end = 0
    for block in _FENCED.finditer(markdown):
        pieces += [_LINK.sub(replace, markdown[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*pieces, _LINK.sub(replace, markdown[end:])])


# State diagrams: initial states on the left, final states on the right, the others between.
_WIDTH, _HEIGHT = 140, 38
_COLUMNS = (10, 270, 600)
_ROW = 84


def draw_states(source: str, language: str, css_class: str, *_: Any, **__: Any) -> str:
    """A Mermaid state diagram as an image (SVG); a fence of Python-Markdown's ``superfences``.

    A state's arrows have the colour of its frame.
    """
    arrows = re.findall(r"^ *(\S+) --> (\S+)$", source, re.MULTILINE)
    first = [to for start, to in arrows if start == "[*]"]
    last = [start for start, to in arrows if to == "[*]"]
    between = list(dict.fromkeys(start for start, _ in arrows if start not in {*first, *last, "[*]"}))
    places: dict[str, tuple[int, int]] = {}
    for column, states in zip(_COLUMNS, (first, between, last), strict=True):
        top = 60 if states is first else 150 if states is between else 100
        for row, state in enumerate(states):
            places[state] = (column, top + row * _ROW)
    colours = {state: f"hsl({40 + 360 * at // len(places)} 65% 45%)" for at, state in enumerate(places)}
    drawn = [
        _arrow(places[start], places[to], colours[start]) for start, to in arrows if "[*]" not in (start, to)
    ]
    boxes = [_box(state, *place, colours[state], over=state in last) for state, place in places.items()]
    height = max(y for _, y in places.values()) + _HEIGHT + 60
    heads = "".join(
        f'<marker id="head-{at}" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0 8 4 0 8z" fill="{colour}"/></marker>'
        for at, colour in enumerate(dict.fromkeys(colours.values()))
    )
    at = {colour: f"head-{number}" for number, colour in enumerate(dict.fromkeys(colours.values()))}
    paths = "".join(
        f'<path d="{way}" fill="none" stroke="{colour}" stroke-width="1.5" marker-end="url(#{at[colour]})"/>'
        for way, colour in drawn
    )
    description = escape("; ".join(f"{start} to {to}" for start, to in arrows))
    return (
        f'<svg class="{css_class}" viewBox="0 0 760 {height}" role="img" xmlns="http://www.w3.org/2000/svg" '
        f'font-family="sans-serif" font-size="14"><title>State diagram</title><desc>{description}</desc>'
        f"<defs>{heads}</defs>{paths}{''.join(boxes)}</svg>"
    )


def _box(state: str, x: int, y: int, colour: str, *, over: bool) -> str:
    """A state; a final state has a double frame."""
    frame = f'rx="19" fill="none" stroke="{colour}" stroke-width="2"'
    inner = (
        f'<rect x="{x + 4}" y="{y + 4}" width="{_WIDTH - 8}" height="{_HEIGHT - 8}" {frame}/>' if over else ""
    )
    words = f'<text x="{x + _WIDTH // 2}" y="{y + 24}" text-anchor="middle" fill="currentColor">{escape(state)}</text>'
    return f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" {frame}/>{inner}{words}'


def _arrow(start: tuple[int, int], to: tuple[int, int], colour: str) -> tuple[str, str]:
    """The path of an arrow from one box to another, and its colour."""
    (x, y), (to_x, to_y) = start, to
    middle, to_middle = y + _HEIGHT // 2, to_y + _HEIGHT // 2
    if start == to:  # a loop over the box's upper edge
        x += _WIDTH // 2
        return f"M{x - 14} {y} C{x - 34} {y - 34} {x + 34} {y - 34} {x + 14} {y}", colour
    if x == to_x:  # in one column: beside it, down on its left and up on its right
        side, out = (x, -1) if to_y > y else (x + _WIDTH, 1)
        bow = out * (28 + abs(to_y - y) // 5)
        return f"M{side} {middle} C{side + bow} {middle} {side + bow} {to_middle} {side} {to_middle}", colour
    if to_x - x > 400:  # from the first column to the last: above those between
        return (
            f"M{x + _WIDTH} {middle - 8} C{x + 340} {y - 60} {to_x - 120} {y - 30} {to_x} {to_middle}",
            colour,
        )
    bend = (to_x - x - _WIDTH) // 2
    return (
        f"M{x + _WIDTH} {middle} C{x + _WIDTH + bend} {middle} {to_x - bend} {to_middle} {to_x} {to_middle}",
        colour,
    )

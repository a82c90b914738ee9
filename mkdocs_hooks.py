"""What MkDocs does not do by itself for the site of the documents (``mkdocs.yml``).

Pages link to files of the repository outside of ``docs/``, as one who reads them there needs it: those files become pages,
under ``repository/``. State diagrams are drawn here, so that nothing has to be fetched to show them. Every page lies in
the site as Markdown, too, beside its HTML, for programs that read (``llms.txt``). And a site that would fetch anything from elsewhere is
an error.
"""

import posixpath
import re
import shutil
from html import escape
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent
DOCS = "docs"
REPOSITORY = "repository"
"""Where in the site the files of the repository are."""

ALWAYS = ("CHANGELOG.md", "CONTRIBUTING.md", "SKILL.md")
"""Files that the navigation names."""

LANGUAGES = {".py": "python", ".js": "javascript", ".json": "json", ".toml": "toml", ".yaml": "yaml"}

_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)\s#]+)(?=[)#])")
_FOREIGN = re.compile(r"""<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)="?(?:https?:)?//[^\s">]+""")
_FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files of the repository that pages link to, and those that they link to in turn."""
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
    """Turn links between places in the repository into links between places in the site."""
    here = page.file.src_uri
    source = here.removeprefix(f"{REPOSITORY}/") if here.startswith(f"{REPOSITORY}/") else f"{DOCS}/{here}"

    def moved(link: re.Match[str]) -> str:
        path = _resolved(source, link[1])
        place = path.removeprefix(f"{DOCS}/") if path.startswith(f"{DOCS}/") else _place(path)
        return posixpath.relpath(place, posixpath.dirname(here) or ".")

    return _outside_of_code(markdown, moved)


def on_post_build(config: MkDocsConfig) -> None:
    """Lay the Markdown of pages beside them, and look whether anything would be fetched from elsewhere."""
    site = Path(config.site_dir)
    copies = {page: site / page.relative_to(ROOT / DOCS) for page in (ROOT / DOCS).rglob("*.md")}
    copies |= {ROOT / path: site / _place(path) for path in ALWAYS}
    for page, copy in copies.items():
        shutil.copyfile(page, copy)
    for page in site.rglob("*.html"):
        if found := _FOREIGN.search(page.read_text(encoding="utf-8")):
            raise PluginError(f"{page.relative_to(site)} fetches from elsewhere: {found[0]}")


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
    """Where in the site a file of the repository is."""
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


# The drawing of a state diagram: where it begins on the left, where it ends on the right, the rest between.
_WIDTH, _HEIGHT = 140, 38
_COLUMNS = (10, 270, 600)
_ROW = 84


def draw_states(source: str, language: str, css_class: str, *_: Any, **__: Any) -> str:
    """A Mermaid state diagram as an image (SVG); a fence of Python-Markdown's ``superfences``.

    Each state's arrows have a colour of their own, which is that of its frame.
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
    told = escape("; ".join(f"{start} to {to}" for start, to in arrows))
    return (
        f'<svg class="{css_class}" viewBox="0 0 760 {height}" role="img" xmlns="http://www.w3.org/2000/svg" '
        f'font-family="sans-serif" font-size="14"><title>State diagram</title><desc>{told}</desc>'
        f"<defs>{heads}</defs>{paths}{''.join(boxes)}</svg>"
    )


def _box(state: str, x: int, y: int, colour: str, *, over: bool) -> str:
    """A state; one that is an end has a double frame."""
    frame = f'rx="19" fill="none" stroke="{colour}" stroke-width="2"'
    inner = (
        f'<rect x="{x + 4}" y="{y + 4}" width="{_WIDTH - 8}" height="{_HEIGHT - 8}" {frame}/>' if over else ""
    )
    words = f'<text x="{x + _WIDTH // 2}" y="{y + 24}" text-anchor="middle" fill="currentColor">{escape(state)}</text>'
    return f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" {frame}/>{inner}{words}'


def _arrow(start: tuple[int, int], to: tuple[int, int], colour: str) -> tuple[str, str]:
    """The way of an arrow from one box to another, and its colour."""
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

"""Answers rendered as Markdown."""

import io
import re

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tailrace.server.cli import ask_output
from tailrace.server.cli.ask_output import MarkdownScreen
from tailrace.server.cli.transcript import RESPONSE_CHANNEL, Remark, Text

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def drawn(*items: Text | Remark, terminal: bool = False) -> str:
    out = Terminal() if terminal else io.StringIO()
    screen = MarkdownScreen(out, Console(file=out, force_terminal=terminal, color_system=None, width=60))
    for item in items:
        screen.show(item)
    screen.close()
    return out.getvalue()


def pieces(text: str, size: int, source: str = "text") -> list[Text]:
    return [Text(source, RESPONSE_CHANNEL, text[at : at + size]) for at in range(0, len(text), size)]


ANSWER_TEXT = """# Rivers

The **Rhine** and others:

- Po
- Ebro

```python
rivers = ["Po"]

print(rivers)
```

That is all."""


def test_blocks_are_drawn_once_and_in_order_however_the_text_is_cut() -> None:
    whole = drawn(*pieces(ANSWER_TEXT, 1000))
    assert "**" not in whole
    assert "•" in whole
    for size in (1, 2, 7, 50):
        shown = drawn(*pieces(ANSWER_TEXT, size))
        words = ["Rivers", "Rhine", "Po", "Ebro", 'rivers = ["Po"]', "print(rivers)", "That is all."]
        places = [shown.index(word) for word in words]
        assert places == sorted(places)
        assert all(shown.count(word) == whole.count(word) for word in words)


def test_the_output_of_an_agent_does_not_control_the_terminal() -> None:
    shown = drawn(Text("text", RESPONSE_CHANNEL, "a \x1b[31mred\x07 word"), terminal=True)
    assert "\\x1b[31mred\\x07" in _CONTROL.sub("", shown)


def test_the_cursor_is_on_an_empty_line_while_a_text_grows() -> None:
    """The terminal echoes ^C at the cursor: at the end of a full line, that would move the text by a line."""
    out = Terminal()
    screen = MarkdownScreen(out, Console(file=out, force_terminal=True, color_system=None, width=60))
    for item in pieces("A paragraph that fills the whole line of the terminal, and another. " * 3, 9):
        screen.show(item)
        assert not _CONTROL.sub("", out.getvalue().rpartition("\n")[2]).strip(" ")
    screen.close()


def test_html_line_breaks_and_delimiters_of_math_are_text() -> None:
    shown = drawn(
        Text("text", RESPONSE_CHANNEL, "a <b>c</b>\nnext \\(x\\) and `\\(y\\)`\n\n<div>\nd\n</div>\n")
    )
    lines = [line.rstrip() for line in shown.splitlines()]
    assert lines[:2] == ["a <b>c</b>", r"next \(x\) and \(y\)"]
    assert {"<div>", "d", "</div>"} <= set(lines)


def test_remarks_and_other_answers_stand_below_what_was_drawn() -> None:
    shown = drawn(
        *pieces("first *answer*", 4),
        Remark("tool call", "weather()"),
        *pieces("second", 3, "other"),
        Text("other", RESPONSE_CHANNEL, "third", again=True),
    )
    lines = [line.strip() for line in shown.splitlines() if line.strip()]
    assert lines[:3] == ["first answer", "tool call: weather()", "second"]
    assert "replaced" in lines[3]
    assert lines[-1] == "third"


@given(st.text(alphabet="a\n`~- #", max_size=60))
def test_a_text_is_parted_into_blocks_without_losing_any(text: str) -> None:
    done, rest = ask_output._split_blocks(text)  # pyright: ignore[reportPrivateUsage]
    assert done + rest == text
    assert not done or done.endswith("\n")

"""Answers rendered as Markdown."""

import io
import re

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tailrace.server.cli import screen as screen_module
from tailrace.server.cli.screen import MarkdownScreen
from tailrace.server.cli.transcript import ANSWER, Remark, Text

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
    return [Text(source, ANSWER, text[at : at + size]) for at in range(0, len(text), size)]


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


def test_on_a_terminal_what_an_agent_says_does_not_steer_it() -> None:
    shown = drawn(Text("text", ANSWER, "a \x1b[31mred\x07 word"), terminal=True)
    assert "\\x1b[31mred\\x07" in _CONTROL.sub("", shown)


def test_remarks_and_other_answers_stand_below_what_was_drawn() -> None:
    shown = drawn(
        *pieces("first *answer*", 4),
        Remark("tool call", "weather()"),
        *pieces("second", 3, "other"),
        Text("other", ANSWER, "third", again=True),
    )
    lines = [line.strip() for line in shown.splitlines() if line.strip()]
    assert lines[:3] == ["first answer", "tool call: weather()", "second"]
    assert "replaced" in lines[3]
    assert lines[-1] == "third"


@given(st.text(alphabet="a\n`~- #", max_size=60))
def test_a_text_is_parted_into_blocks_without_losing_any(text: str) -> None:
    done, rest = screen_module._parted(text)  # pyright: ignore[reportPrivateUsage]
    assert done + rest == text
    assert not done or done.endswith("\n")

"""Long Markdown answers, as models write them, and hostile ones."""

CODE = """Here is a *parser*:

```python
def parse(text: str) -> list[str]:
    \"\"\"Split `text`.\"\"\"
    lines = []

    for line in text.splitlines():
        if line.startswith("```"):  # not a fence
            continue
        lines.append(line.strip())
    return lines

```

Use it so:

~~~~sh
$ python -m parser <input.txt | head -n 3
```
~~~~

1. Indented code in a list:

   ```js
   const a = `b ${1 + 1}`; // <b>
   ```

2. And without a language:

       plain & <simple>

Done.
"""

TABLES = """| river | length | *state* |
|:--|--:|:-:|
| Nile | 6,650 km | **long** |
| `a|b` | \\| | [x](https://example.com) |
| short |

Text | with | bars
no table follows

|a|b|
|-|-|
|1|2|
> a quote right after it
"""

LISTS = """- one
- two
  - nested
    - deeper
      with a second line
  - again

    with a paragraph
- three

* other marks
* [ ] open
* [x] done

3. begins at three
4. four
   1. inner
   2. inner
10. ten

- a
1. b
- c
lazy line

text
- directly after text
---
***
- - - not a list
"""

MATH = """The area is $A = \\pi r^2$ and \\(e^{i\\pi} + 1 = 0\\); it costs $5 or $10.

$$
\\int_0^1 x^2 \\, dx = \\frac{1}{3}
$$

Text before
\\[
\\begin{pmatrix} a & b \\\\ c & d \\end{pmatrix}
\\]
and after, $$x$$ inline.

- in a list: $\\sum_{k=1}^n k$
- wrong: $\\frac{1$ and \\(\\undefinedcommand\\)

$$ never closed
- with a list

after it
"""

RIGHT_TO_LEFT = """## نهر النيل

النيل **طويل** جدا، وطوله `6650` كم.

- أولا
- ثانيا: _المصب_

> عربي ועברית together 123

| اسم | طول |
|---|---|
| النيل | 6650 |
"""

EMOJI = """# 🌍 Rivers 👩\u200d🚀

Family: 👨\u200d👩\u200d👧\u200d👦, flag 🇨🇭, e\u0301 and 世界.

1. 🥇 **gold** 🪙
2. 🥈 _silver_ 🥄

```text
🚀 → 🌕\t(tab)
```

~~😀~~ 2 * 3 * 4 = 24 and snake_case_name and 5~6.
"""

FOOTNOTES = """A claim[^1] and another[^long]. The same again[^1], and none[^missing].

See [the page][ref], [shortcut], and <https://example.com/auto>.

[^1]: The first *note*.
[^long]: A note
    with a second line and `code`.

[ref]: https://example.com/ref "Title"
[shortcut]: <https://example.com/short>

Now [ref] is known to the text before and [after][REF] it.
"""

HTML = """Raw <b>HTML</b> is text, <br> and a break.

<div onclick="alert(1)">
**bold** in it
</div>

<!-- a comment

over lines --> &amp; &lt;b&gt; &#65; &#x1F600; &nope; &copy;

<script>
alert(1)
</script>

<details><summary>More</summary>

text
</details>
"""

QUOTES = """> First
> second **line**
>
> > nested
> > - list
> >   - deeper
>
> ```py
> code = "in a quote"
> ```
continued lazily? no

> # A heading in a quote
lazy line
> more

Setext
======

Another
---

A line with two spaces at its end\x20\x20
breaks.\\
So does this one.

\\*not emphasized\\* and **bold *and italic* text** and ***both*** __strong__ _em_
"""

MIXED = """### Steps

First read [the guide](https://example.com/a_(b)?c=d&e=f "title"), then ![a picture](https://example.com/p.png) and
![inline](data:image/png;base64,iVBORw0KGgo=).

1. Install it:

   ```bash
   pip install 'tailrace[demo]'
   ```

   > **Note**: it needs Python.

2. Configure:

   | name | value |
   |---|---|
   | `A` | 1 |

3. Run **it**

+ plus
+ signs

#no heading
# heading #
####### seven

https://example.com/path_with_underscores, www.example.com and me@example.com.

Final paragraph without an end"""

ANSWERS = {
    "code": CODE,
    "tables": TABLES,
    "lists": LISTS,
    "math": MATH,
    "right to left": RIGHT_TO_LEFT,
    "emoji": EMOJI,
    "footnotes": FOOTNOTES,
    "html": HTML,
    "quotes": QUOTES,
    "mixed": MIXED,
}

_SCRIPTS = (
    "<script>hit()</script>",
    "<img src=x onerror=hit()>",
    "<svg onload=hit()>",
    "<svg><animate onbegin=hit() attributeName=x dur=1s>",
    '<iframe srcdoc="<script>parent.hit()</script>"></iframe>',
    "<iframe src=javascript:parent.hit()>",
    "<details open ontoggle=hit()>",
    "<video><source onerror=hit()>",
    "<math><mtext><style><img src onerror=hit()></style></mtext></math>",
    "<object data=javascript:hit()>",
    "<form action=javascript:hit()><input type=submit autofocus onfocus=hit()>",
    "<a href=javascript:hit()>x</a>",
    "<base href=https://example.com/>",
    "<meta http-equiv=refresh content=0;url=https://example.com/>",
    "<link rel=stylesheet href=https://example.com/>",
    "</div></tailrace-chat><script>hit()</script>",
    "&lt;script&gt;hit()&lt;/script&gt;",
    "<scr\0ipt>hit()</script>",
)

_ADDRESSES = (
    "javascript:hit()",
    "JaVaScRiPt:hit()",
    " javascript:hit()",
    "java\tscript:hit()",
    "java&#10;script:hit()",
    "&#106;avascript:hit()",
    "javascript&colon;hit()",
    "\x01javascript:hit()",
    "vbscript:hit()",
    "data:text/html,<script>hit()</script>",
    "data:text/html;base64,PHNjcmlwdD5oaXQoKTwvc2NyaXB0Pg==",
    "data:image/svg+xml,<svg/onload=hit()>",
    "blob:https://example.com/x",
    "file:///etc/passwd",
    "//example.com/x",
    "/relative",
    "https:javascript:hit()",
    '" onmouseover="hit()',
    'https://example.com/" onerror="hit()',
    "x' onerror='hit()",
)

_LINKS = ("[x]({})", "![x]({})", "<{}>", "[x]: {}\n\n[x]", "[![x]({0})]({0})")
_PLACES = ("{}", "- {}", "> {}", "| a |\n|---|\n| {} |", "[^1]: {}\n\nx[^1]", "$ {} $")

HOSTILE = [
    *(place.format(script) for place in _PLACES for script in _SCRIPTS),
    *(link.format(address) for link in _LINKS for address in _ADDRESSES),
    "$\\href{javascript:hit()}{x}$",
    "$$\\url{javascript:hit()}$$",
    "$$\\includegraphics{https://example.com/x.png}$$",
    "$\\htmlData{onclick=hit()}{x}$",
    "$\\style{background:url(https://example.com)}{x}$",
    "$\\class{said}{x}$",
    "```html\n<script>hit()</script>\n```",
    '```"><img src=x onerror=hit()>\ncode\n```',
    "```__proto__\ncode\n```",
    "```constructor\ncode\n```",
    "[^__proto__]: x\n\n[^__proto__] [__proto__] [constructor][]",
    "[__proto__]: https://example.com\n\n[__proto__]",
]
"""Texts that try to run code or to load something, for a page where ``hit`` exists."""

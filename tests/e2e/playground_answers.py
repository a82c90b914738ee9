"""Long Markdown answers, as models write them, and hostile ones."""

from pathlib import Path

_FOLDER = Path(__file__).parent / "answers"

ANSWERS = {
    name: (_FOLDER / f"{name}.md").read_text(encoding="utf-8")
    for name in (
        "code",
        "tables",
        "lists",
        "math",
        "right-to-left",
        "emoji",
        "footnotes",
        "html",
        "quotes",
        "mixed",
    )
}
"""At least 2,000 characters each. Each ends in the middle of a construct, as a response that was stopped."""

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

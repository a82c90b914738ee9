"""Mutations of a call: of size, depth, types, numbers, text, names, schemas, headers, queries and paths.

A mutation has a name, and all its choices follow from a number, so that a case can be stored and repeated without
some of its steps. Mutations of a body change its JSON; the text of large values is made without building the values.
"""

import base64
import json
from collections.abc import Callable
from random import Random
from typing import Any, cast
from urllib.parse import quote

from fuzz.json_text import Members, Place, Raw, places, write
from fuzz.requests.calls import CALLERS, COMPLETED, CONTEXT, PAGE_TOKEN, WAITING, Call, mutated_token

Tree = Callable[[Random, list[Place], int], None]
Change = Callable[[Random, Call, int], None]

_COUNTS = (10, 100, 1000, 1000, 10_000, 10_000, 100_000, 1_000_000)
_DEPTHS = (3, 29, 31, 64, 100, 130, 500, 1000, 5000, 100_000)
_NUMBERS = (
    *("0", "-0", "-1", "1", "2147483648", "9223372036854775808", "18446744073709551616", "1.5", "1e308"),
    *("1e999", "-1e999", "NaN", "Infinity", "-Infinity", "5e-324", "9" * 5000, "-" + "9" * 5000),
    *("0." + "1" * 5000, "1e" + "9" * 400, "01", "1" + "0" * 308),
)
_TEXTS = (
    *('""', '" "', '"\\u0000"', '"\\ud800"', '"\\udc00\\ud800"', '"\\u001b[31m\\r\\nERROR: x"', '"\\u2028"'),
    *('"\\ufeff"', '"%00"', '"../../etc/passwd"', '"null"', '"true"', '"0"', '"-1"', '"1e999"', '"\x7f"'),
    *(
        '"data:;base64,AAAA"',
        '"data:,"',
        '"data:image/png;base64,%%%"',
        '"http://[::1"',
        '"http://a\\u0000b/"',
    ),
    *('"file:///etc/passwd"', '"urn:tailrace:ext:stream:v1"', '"0001-01-01T00:00:00+14:00"', '"a/b"', '"="'),
    *(
        '"9999-12-31T23:59:59.999999999-14:00"',
        '"10000-01-01T00:00:00Z"',
        '"ROLE_AGENT"',
        '"agent"',
        '"tool"',
    ),
    *('"assistant"', '"system"', '"TASK_STATE_WORKING"', '"text/plain;q=0"', '"function"', '"json_schema"'),
    f'"{COMPLETED}"',
    f'"{WAITING}"',
    f'"{CONTEXT}"',
)
_VALUES = ("null", "true", "false", "0", "-1", '"x"', "[]", "{}", "[[]]", "[{}]", "[null]", '{"":null}')
_NAMES = (
    *("", "id", "text", "type", "kind", "role", "parts", "content", "messages", "metadata", "tools", "data"),
    *("__class__", "__proto__", "$ref", "\0", "\ud800", "x" * 10_000, "tenant", "stream", "model", "request"),
    *(
        "tool_calls",
        "tool_results",
        "raw",
        "url",
        "file",
        "contextId",
        "taskId",
        "message",
        "params",
        "output",
    ),
    *("historyLength", "configuration", "extensions", "referenceTaskIds", "urn:tailrace:ext:stream:v1"),
)
_FILLERS = (
    "[]",
    "{}",
    "null",
    "0",
    '""',
    '"x"',
    '{"text":"x"}',
    '{"a":[]}',
    '{"type":"text","text":"x"}',
    '{"role":"user","content":"x"}',
    '{"role":"user","parts":[{"type":"text","text":"x"}]}',
    '{"role":"assistant","content":"x"}',
    '{"role":"tool","tool_call_id":"call-1","content":"x"}',
    '{"kind":"text","text":"x"}',
)


def _filled(element: str, rng: Random, room: int) -> str:
    """A list of one value repeated, of at most this many bytes."""
    count = min(rng.choice(_COUNTS), max(1, room // (len(element) + 1)))
    return "[" + ",".join([element] * count) + "]"


def _repeat(rng: Random, found: list[Place], room: int) -> None:
    """Repeat the elements of a list."""
    lists = [place for place in found if _is_filled_list(place.value)]
    if lists:
        place = rng.choice(lists)
        values = cast("list[Any]", place.value)
        inner = ",".join(write(value).decode("utf-8", "surrogatepass") for value in values)
        place.put(Raw(_filled(inner, rng, room)))


def _is_filled_list(value: object) -> bool:
    return isinstance(value, list) and not isinstance(value, Members) and value != []


def _fill(rng: Random, found: list[Place], room: int) -> None:
    rng.choice(found).put(Raw(_filled(rng.choice(_FILLERS), rng, room)))


def _widen(rng: Random, found: list[Place], room: int) -> None:
    """Insert an object with many members in the place of a value or in the metadata."""
    count = min(rng.choice(_COUNTS), room // 16)
    value = rng.choice(_VALUES)
    same = rng.random() < 0.2
    members = ",".join(f'"k{0 if same else number}":{value}' for number in range(count))
    _place(rng, found).put(Raw("{" + members + "}"))


def _deepen(rng: Random, found: list[Place], room: int) -> None:
    depth = rng.choice(_DEPTHS)
    shapes = (("[", "]"), ('{"a":', "}"), ('[{"type":"text","text":', "}]"), ('{"properties":{"a":', "}}"))
    begin, end = rng.choice((*shapes, ('{"items":', "}"), ('{"not":', "}")))
    ending = end * depth if rng.random() < 0.8 else ""
    _place(rng, found).put(Raw(begin * depth + rng.choice(_VALUES) + ending))


def _place(rng: Random, found: list[Place]) -> Place:
    """A place; half of the time one in metadata or other free-form JSON."""
    names = ("metadata", "data", "parameters", "schema", "output", "input", "arguments", "state", "value")
    free = [place for place in found if place.key in names]
    return rng.choice(free) if free and rng.random() < 0.5 else rng.choice(found)


def _number(rng: Random, found: list[Place], room: int) -> None:
    numbers = [place for place in found if type(place.value) in (int, float)]
    rng.choice(numbers or found).put(Raw(rng.choice(_NUMBERS)))


def _text(rng: Random, found: list[Place], room: int) -> None:
    texts = [place for place in found if isinstance(place.value, str)]
    rng.choice(texts or found).put(Raw(rng.choice(_TEXTS)))


def _long_text(rng: Random, found: list[Place], room: int) -> None:
    unit = rng.choice(
        (
            "x",
            "\\u0000",
            "\\ud800",
            "é",
            "😀",
            "> ",
            "# ",
            "\\n",
            "AAAA",
            "a,",
            "%",
            "<think>",
            "{",
            "![](data:a;b,c)",
        )
    )
    size = min(rng.choice((1000, 100_000, 1_000_000, 8_000_000)), room)
    text = unit * (size // len(unit.encode()))
    prefix = rng.choice(("", "", "data:image/png;base64,", "http://example.com/", "tasks/"))
    texts = [place for place in found if isinstance(place.value, str)]
    rng.choice(texts or found).put(Raw(f'"{prefix}{text}"'))


def _swap_type(rng: Random, found: list[Place], room: int) -> None:
    rng.choice(found).put(Raw(rng.choice(_VALUES)))


def _drop(rng: Random, found: list[Place], room: int) -> None:
    place = rng.choice(found)
    del place.parent[place.index]


def _duplicate(rng: Random, found: list[Place], room: int) -> None:
    place = rng.choice(found)
    place.parent.insert(rng.randrange(len(place.parent) + 1), place.parent[place.index])


def _rename(rng: Random, found: list[Place], room: int) -> None:
    members = [place for place in found if isinstance(place.parent, Members)]
    if members:
        place = rng.choice(members)
        place.parent[place.index] = (rng.choice(_NAMES), place.value)


def _add(rng: Random, found: list[Place], room: int) -> None:
    objects = [place.parent for place in found if isinstance(place.parent, Members)]
    if objects:
        value = rng.choice((*_VALUES, *_NUMBERS, *_TEXTS))
        rng.choice(objects).append((rng.choice(_NAMES), Raw(value)))


def _copy(rng: Random, found: list[Place], room: int) -> None:
    rng.choice(found).put(Raw(write(rng.choice(found).value).decode("utf-8", "surrogatepass")))


def _token(rng: Random, found: list[Place], room: int) -> None:
    named = [place for place in found if place.key in ("pageToken", "page_token")]
    (rng.choice(named) if named else rng.choice(found)).put(Raw(json.dumps(mutated_token(rng))))


def _schema(rng: Random, found: list[Place], room: int) -> None:
    """A JSON schema that is expensive to compile or to validate with."""
    named = [
        place for place in found if place.key in ("schema", "parameters", "$defs", "properties", "items")
    ]
    count = min(rng.choice((10, 1000, 9900, 100_000)), room // 40)
    (rng.choice(named) if named else rng.choice(found)).put(Raw(_hostile_schema(rng, count)))


def _hostile_schema(rng: Random, count: int) -> str:
    each = range(count)
    ref = ",".join(f'"p{number}":{{"$ref":"#/$defs/d{number}"}}' for number in each)
    chain = ",".join(f'"d{number}":{{"$ref":"#/$defs/d{number + 1}"}}' for number in each)
    pattern = rng.choice(("(a+)+$", "^(a|aa)*$", "(x*)*y", "a{1,1000}", "(?:a?){30}a{30}", "[", "\\\\p{L}+"))
    patterns = ",".join(f'"p{number}":{{"type":"string","pattern":"{pattern}"}}' for number in each)
    back = ",".join(f'"p{number}":{{"pattern":"(a)\\\\1{number}"}}' for number in each)
    forms = (
        f'{{"type":"object","properties":{{{ref}}},"$defs":{{{chain},"d{count}":{{}}}}}}',
        f'{{"type":"object","properties":{{{patterns}}}}}',
        f'{{"type":"object","properties":{{{back}}}}}',
        f'{{"type":"object","patternProperties":{{"{pattern}":{{}}}}}}',
        '{"type":"object","anyOf":[' + ",".join(['{"$ref":"#"}'] * count) + "]}",
        '{"type":"object","enum":[' + ",".join(str(number) for number in each) + "]}",
        '{"type":"object","required":[' + ",".join(f'"{number}"' for number in each) + "]}",
        '{"$ref":"#"}',
        '{"$ref":"http://127.0.0.1:9/schema"}',
        '{"$schema":"http://example.com/x","$id":"urn:x","$dynamicRef":"#a","$anchor":"a"}',
        '{"type":"object","allOf":[' + ",".join(['{"properties":{"a":{"$ref":"#"}}}'] * count) + "]}",
        "true",
    )
    return rng.choice(forms)


ON_TREE: dict[str, Tree] = {
    "repeat": _repeat,
    "fill": _fill,
    "widen": _widen,
    "deepen": _deepen,
    "number": _number,
    "text": _text,
    "long-text": _long_text,
    "swap-type": _swap_type,
    "drop": _drop,
    "duplicate": _duplicate,
    "rename": _rename,
    "add": _add,
    "copy": _copy,
    "token": _token,
    "schema": _schema,
}


# --- other parts of a call ------------------------------------------------------------------------------------------


def _flip(rng: Random, call: Call, room: int) -> None:
    changed = bytearray(call.body)
    for _ in range(rng.choice((1, 1, 2, 8)) if changed else 0):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    call.body = bytes(changed)


def _cut(rng: Random, call: Call, room: int) -> None:
    call.body = call.body[: rng.randrange(len(call.body) + 1)]


def _insert(rng: Random, call: Call, room: int) -> None:
    at = rng.randrange(len(call.body) + 1)
    what = rng.choice(
        (b"\0", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b" ", b",", b'"', b"{", b"]", b"\\", b"\n")
    )
    call.body = call.body[:at] + what * rng.choice((1, 1, 100, 100_000)) + call.body[at:]


def _again(rng: Random, call: Call, room: int) -> None:
    """Repeat the body: not JSON, but one protobuf message with lists that are as many times as long."""
    count = min(rng.choice(_COUNTS), room // max(1, len(call.body)))
    call.body *= max(1, count)


def _whole_body(rng: Random, call: Call, room: int) -> None:
    depth = rng.choice(_DEPTHS)
    call.body = rng.choice(
        (
            b"",
            b"null",
            b"[]",
            b"[" * depth,
            b'{"a":' * depth,
            b" " * rng.choice((10, 1_000_000)),
            b"\xff\xfe{}",
        )
    )


def _header(rng: Random, call: Call, room: int) -> None:
    name = rng.choice(
        (
            *(
                "Last-Event-ID",
                "A2A-Extensions",
                "X-A2A-Extensions",
                "A2A-Version",
                "Idempotency-Key",
                "Cookie",
            ),
            *(
                "X-Conversation-Id",
                "Accept",
                "Accept-Encoding",
                "If-None-Match",
                "Range",
                "Origin",
                "Referer",
            ),
            *(
                "X-Forwarded-For",
                "X-Forwarded-Proto",
                "X-Forwarded-Prefix",
                "traceparent",
                "tracestate",
                "baggage",
            ),
            *(
                "Expect",
                "Forwarded",
                "Authorization",
                "X-API-Key",
                "Sec-Fetch-Site",
                "Content-Encoding",
                "Via",
            ),
        )
    )
    value = rng.choice(
        (
            *(
                "",
                "0",
                "5",
                "-1",
                "9" * 15,
                "9" * 5000,
                "1e3",
                "٣",
                "\xff\xfe",
                "é",
                "a\tb",
                "1.0",
                "0.3",
                "0.1",
            ),
            *("9.9", "*", "null", "text/event-stream", "urn:tailrace:ext:stream:v1", "a,b,c", "," * 5000),
            *(
                ",".join(f"urn:x:{number}" for number in range(1000)),
                "x" * 8000,
                "x" * 60_000,
                "100-continue",
            ),
            *(
                "Bearer ",
                "Bearer a.b.c",
                f"Bearer {_jwt(rng)}",
                "Basic YTpi",
                "tailrace_token=x",
                "a=" * 3000,
            ),
            *("gzip", "00-" + "a" * 32 + "-" + "b" * 16 + "-01", "%00", "http://evil.example", "cross-site"),
            *(
                CONTEXT,
                '"x"',
                "W/" * 1000,
                "bytes=0-",
                "\x01\x02",
                "resp_" + "x" * 200,
                "text/html;q=" + "9" * 400,
            ),
        )
    )
    if name == "Expect" and value == "100-continue":
        value = "200-ok"  # the response follows the complete body
    if rng.random() < 0.5:
        call.set_header(name, value)
    else:
        call.headers += [(name, value)] * rng.choice((1, 2, 50))


def _jwt(rng: Random) -> str:
    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    header = {
        "alg": rng.choice(("none", "RS256", "HS256", 5)),
        "kid": rng.choice(("a", "\ud800", "x" * 2000, [])),
    }
    header["crit"] = ["a\r\nERROR: forged\x1b[31m"]
    return f"{part(header)}.{part({'sub': rng.choice(('a', chr(0xD800), 5, None))})}.AAAA"


def _content_type(rng: Random, call: Call, room: int) -> None:
    kinds = (
        *("text/plain", "", "application/a2a+json", "application/json; charset=utf-16", "APPLICATION/JSON"),
        *("application/json;" * 1000, "multipart/form-data; boundary=x", "application/x-www-form-urlencoded"),
        *("application/jsonx", "a/b", "/", "\xff", "application/json, text/plain"),
    )
    call.set_header("Content-Type", rng.choice(kinds))


def _caller(rng: Random, call: Call, room: int) -> None:
    call.set_header(
        "X-API-Key", rng.choice((CALLERS["bob"], CALLERS["bob"], "", "wrong", "\xe9", "k" * 8000))
    )


def _query(rng: Random, call: Call, room: int) -> None:
    name = rng.choice(
        (
            *(
                "pageSize",
                "pageToken",
                "historyLength",
                "contextId",
                "status",
                "statusTimestampAfter",
                "after",
            ),
            *(
                "includeArtifacts",
                "A2A-Version",
                "A2A-Extensions",
                "api_key",
                "access_token",
                "tenant",
                "id",
                "taskId",
            ),
            *("page_size", "history_length", "%00", "", "x" * 1000, "historyLength[]", "metadata"),
        )
    )
    value = rng.choice(
        (
            *(
                "",
                "0",
                "-1",
                "5",
                "1.5",
                "1e9",
                "NaN",
                "9" * 400,
                "9" * 5000,
                "%D9%A3",
                "%C2%B2",
                "--5",
                "-",
                "true",
            ),
            *(
                "%00",
                "%ED%A0%80",
                "%FF",
                "null",
                "%5B%5D",
                "x" * 5000,
                CONTEXT,
                COMPLETED,
                PAGE_TOKEN,
                "2020-01-01",
            ),
            *(
                "0001-01-01T00:00:00%2B14:00",
                "9999-12-31T23:59:59-14:00",
                "TASK_STATE_COMPLETED",
                "unknown",
                "3",
                "%",
            ),
            *(quote(mutated_token(rng)[:50_000], safe="") for _ in range(5)),
        )
    )
    if rng.random() < 0.5:
        call.query = [pair for pair in call.query if pair[0] != name]
    call.query += [(name, value)] * rng.choice((1, 1, 1, 2, 500))


def _path(rng: Random, call: Call, room: int) -> None:
    way = rng.randrange(8)
    parts = call.path.split("/")
    odd = (
        "%00",
        "%2F",
        "%2e%2e",
        "..",
        "%ED%A0%80",
        "%FF",
        "%",
        "%zz",
        "é",
        "x" * 5000,
        "",
        ":",
        "%0d%0a",
        "~",
        ";a=b",
    )
    at = rng.randrange(len(parts))
    if way == 0:
        call.path += "/" * rng.choice((1, 2, 1000))
    elif way == 1:
        parts[at] = rng.choice(odd)
        call.path = "/".join(parts)
    elif way == 2:
        parts[at] += rng.choice(odd)
        call.path = "/".join(parts)
    elif way == 3:
        call.path = "/" + rng.choice((*odd, "acme", "v1")) + call.path
    elif way == 4:
        call.path = "".join(
            f"%{ord(each):02x}" if each.isalnum() and each.isascii() else each for each in call.path
        )
    elif way == 5:
        call.path = call.path.replace(COMPLETED, rng.choice((WAITING, *odd)))
    elif way == 6:
        call.path = call.path.upper()
    else:
        call.path += rng.choice((":cancel", ":subscribe", ":x", "?", "#a", "%3Fa=b"))


def _method(rng: Random, call: Call, room: int) -> None:
    call.method = rng.choice(
        ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "QUERY", "M-SEARCH", "LOCK")
    )


ON_BODY: dict[str, Change] = {
    "flip": _flip,
    "cut": _cut,
    "insert": _insert,
    "again": _again,
    "whole-body": _whole_body,
}
ON_CALL: dict[str, Change] = {
    "header": _header,
    "content-type": _content_type,
    "caller": _caller,
    "query": _query,
    "path": _path,
    "method": _method,
}


def change_tree(name: str, number: int, tree: Any, room: int) -> Any:
    """Return the tree of a body after a mutation; it may be the same object."""
    rng = Random(f"{name}/{number}")
    root = [tree]
    found = places(root)
    # The outermost place is the complete body.
    ON_TREE[name](rng, found if rng.random() < 0.05 else found[1:] or found, room)
    return root[0] if root else Raw("")


def change_call(name: str, number: int, call: Call, room: int) -> None:
    """Change a call in place."""
    rng = Random(f"{name}/{number}")
    (ON_BODY.get(name) or ON_CALL[name])(rng, call, room)

"""Mutations of a body: from a flipped bit to a server that uses a field with another meaning.

A mutation has a name and a seed from which all its choices follow, so that a case can be stored, repeated and
minimised. None requires a particular shape of the body; a mutation without an applicable place does nothing.
"""

import json
from collections.abc import Callable
from random import Random
from typing import Any

from fuzz.corpus import Vocabulary
from fuzz.framing import Frame, join, split
from fuzz.json_text import Members, Place, Raw, parse, places, write

Bytes = Callable[[Random, bytes], bytes]
Frames = Callable[[Random, list[Frame], list[Frame]], None]
Tree = Callable[[Random, list[Place], Vocabulary], None]

_MOST_FRAMES = 2000  # repetition is limited: a body of any length must be read quickly
# Well below the limit on a response, which a decoder checks for each read: in a body beyond it, the size of the reads decides
# which limit is exceeded first.
_MOST_BYTES = 8 * 1024 * 1024

_TOKENS = tuple(
    Raw(text)
    for text in (
        *(
            "null",
            "true",
            "false",
            "0",
            "-0",
            "-1",
            "1",
            "2",
            "7",
            "255",
            "2147483648",
            "9223372036854775807",
        ),
        *(
            "9223372036854775808",
            "18446744073709551616",
            "-9223372036854775809",
            "1.5",
            "0.1",
            "1e3",
            "1E400",
        ),
        *("-1e999", "5e-324", "1" + "0" * 400, "9" * 5000, "NaN", "Infinity", "-Infinity", "01", "+1", ".5"),
        *('""', '"null"', '" "', '"0"', '"1"', '"-1"', '"\\u0000"', '"\\ud800"', '"\\udc00"', '"a\\ud83d"'),
        *('"\\ude00b"', '"\\u2028"', '"\\x41"', '"\t"', '"{}"', '"[]"', '"{\\"a\\":"', '"[DONE]"', '"error"'),
        *(
            '"data: x"',
            '"\\r\\n\\r\\n"',
            '"\\ufeff"',
            '"=="',
            '"AAAA"',
            '"not base64!"',
            '"https://a.test/b"',
        ),
        *(
            '"data:image/png;base64,AAAA"',
            '"1e999"',
            '"NaN"',
            '"true"',
            '"a.b[0].c"',
            '"$.a[*]"',
            "\"$['a']\"",
        ),
        *("[]", "{}", "[[]]", "[{}]", "[null]", "[0]", '[""]', '{"":null}', '{"a":{}}', '{"type":"text"}'),
        *(
            '{"text":"x"}',
            '[{"text":"x"}]',
            '[{"type":"text","text":"x"}]',
            '{"index":0}',
            '{"0":[]}',
            "[1,[2]]",
        ),
        *('{"__class__":"x"}', '{"a":1,"a":2}', "{,}", "[1,]", "nul", "'a'", "// x", "undefined"),
    )
)
_BYTES = (
    *(b"\n", b"\r", b"\r\n", b"\n\n", b"\0", b"\xef\xbb\xbf", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf0\x9f"),
    *(
        b'"',
        b"\\",
        b"\\u",
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b": ",
        b"data:",
        b"data: ",
        b"data\n",
        b"data",
    ),
    *(b"\n\ndata: [DONE]\n\n", b"event: error\n", b"event: ping\n", b"id: \0\n", b"id: 7\n", b"retry: 1\n"),
    *(
        b"error: {}\n",
        b'error: {"message":"x"}\n',
        b"error: x\n\n",
        b": comment\n",
        b"\ndata: ",
        b"\ndata: {}\n\n",
    ),
    *(b"<html>", b"null", b"0", b"-", b"e", b"\xe2\x80\xa8", b"\x1a", b"data: \n\n", b"event:\n", b" "),
)


def _span(rng: Random, length: int) -> tuple[int, int]:
    """A part of a sequence of that length; short ones are more frequent."""
    begin = rng.randrange(length + 1)
    return begin, min(length, begin + int(rng.paretovariate(0.8)))


def _flip(rng: Random, body: bytes) -> bytes:
    changed = bytearray(body)
    for _ in range(rng.choice((1, 1, 2, 8))):
        changed[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _delete(rng: Random, body: bytes) -> bytes:
    begin, end = _span(rng, len(body))
    return body[:begin] + body[end:]


def _double(rng: Random, body: bytes) -> bytes:
    begin, end = _span(rng, len(body))
    return body[:end] + body[begin:]


def _insert(rng: Random, body: bytes) -> bytes:
    at = rng.randrange(len(body) + 1)
    return body[:at] + rng.choice(_BYTES) * rng.choice((1, 1, 1, 2, 50)) + body[at:]


def _overwrite(rng: Random, body: bytes) -> bytes:
    begin, end = _span(rng, len(body))
    return body[:begin] + rng.randbytes(end - begin) + body[end:]


def _cut_off(rng: Random, body: bytes) -> bytes:
    return body[: rng.randrange(len(body) + 1)]


def _behead(rng: Random, body: bytes) -> bytes:
    return body[rng.randrange(len(body) + 1) :]


def _line_ends(rng: Random, body: bytes) -> bytes:
    return body.replace(b"\r\n", b"\n").replace(b"\n", rng.choice((b"\r\n", b"\r", b"\n\n", b"\n", b"")))


def _reframe(rng: Random, body: bytes) -> bytes:
    """The same payloads in another framing."""
    payloads = [frame.payload for frame in split(body) if frame.payload]
    way = rng.randrange(5)
    if way == 0:
        return b"".join([payload + b"\n" for payload in payloads])
    if way == 1:
        return b"[" + b",\r\n".join(payloads) + b"]"
    if way == 2:
        return b"".join([b"data:" + payload + b"\r\n\r\n" for payload in payloads])
    if way == 3:
        return b"".join([_pretty(payload) for payload in payloads])
    return b"".join(payloads)


def _pretty(payload: bytes) -> bytes:
    """An event with JSON over several lines."""
    try:
        text = json.dumps(json.loads(payload), indent=1)
    except (ValueError, RecursionError):
        return b"data: " + payload + b"\n\n"
    return b"".join([b"data: " + line.encode() + b"\n" for line in text.splitlines()]) + b"\n"


def _drop_frames(rng: Random, frames: list[Frame], others: list[Frame]) -> None:
    begin, end = _span(rng, len(frames))
    del frames[begin:end]


def _repeat_frames(rng: Random, frames: list[Frame], others: list[Frame]) -> None:
    begin, end = _span(rng, len(frames))
    again = frames[begin:end] * rng.choice((1, 1, 2, 30))
    frames[end:end] = again[:_MOST_FRAMES]


def _swap_frames(rng: Random, frames: list[Frame], others: list[Frame]) -> None:
    for _ in range(rng.choice((1, 1, 4)) if frames else 0):
        first, second = rng.randrange(len(frames)), rng.randrange(len(frames))
        frames[first], frames[second] = frames[second], frames[first]


def _move_frame(rng: Random, frames: list[Frame], others: list[Frame]) -> None:
    if frames:
        frames.insert(rng.randrange(len(frames)), frames.pop(rng.randrange(len(frames))))


def _splice(rng: Random, frames: list[Frame], others: list[Frame]) -> None:
    """A part of another body in the place of a part of this one."""
    begin, end = _span(rng, len(frames))
    first, last = _span(rng, len(others))
    frames[begin:end] = others[first:last]


def _join_bodies(rng: Random, frames: list[Frame], others: list[Frame]) -> None:
    frames += others


def _interleave(rng: Random, frames: list[Frame], others: list[Frame]) -> None:
    for frame in others:
        frames.insert(rng.randrange(len(frames) + 1), frame)


def _swap_payloads(rng: Random, frames: list[Frame], others: list[Frame]) -> None:
    """Another event's payload under this event's name."""
    if frames and others:
        frames[rng.randrange(len(frames))].payload = rng.choice([*frames, *others]).payload


def _odd(rng: Random) -> Any:
    """An unexpected value."""
    if rng.random() < 0.9:
        return rng.choice(_TOKENS)
    if rng.random() < 0.5:
        return "x" * rng.choice((300, 40_000))
    depth = rng.choice(
        (3, 60, rng.randrange(100, 900), 60_000)
    )  # parsers fail at a depth of about a thousand
    open, close = rng.choice((("[", "]"), ('{"a":', "}"), ('[{"type":"text","text":', "}]")))
    return Raw(open * depth + "0" + close * (depth if rng.random() < 0.8 else 0))


def _replace(rng: Random, found: list[Place], words: Vocabulary) -> None:
    rng.choice(found).put(_odd(rng))


def _replace_many(rng: Random, found: list[Place], words: Vocabulary) -> None:
    """Replace the same key everywhere, as a server does that gives it another meaning."""
    key, value = rng.choice(found).key, _odd(rng)
    for place in found:
        if place.key == key:
            place.put(value)


def _change_number(rng: Random, found: list[Place], words: Vocabulary) -> None:
    numbers = [place for place in found if type(place.value) in (int, float)]
    if numbers:
        place = rng.choice(numbers)
        place.put(rng.choice((place.value + 1, place.value - 1, 0, 1, 2, 3, -1, None, str(place.value), 40)))


def _change_word(rng: Random, found: list[Place], words: Vocabulary) -> None:
    known = [place for place in found if place.key in words.words]
    if known:
        place = rng.choice(known)
        key = place.key if rng.random() < 0.8 else rng.choice(list(words.words))
        place.put(rng.choice(words.words[key]))


def _drop_member(rng: Random, found: list[Place], words: Vocabulary) -> None:
    place = rng.choice(found)
    del place.parent[place.index]


def _double_member(rng: Random, found: list[Place], words: Vocabulary) -> None:
    """Repeat a key or an item of a list."""
    place = rng.choice(found)
    again = place.parent[place.index]
    if isinstance(again, tuple) and rng.random() < 0.5:
        again = (place.key, _odd(rng))
    place.parent.insert(rng.randrange(len(place.parent) + 1), again)


def _rename(rng: Random, found: list[Place], words: Vocabulary) -> None:
    place = rng.choice(found)
    if place.key and words.keys:
        place.parent[place.index] = (rng.choice(words.keys), place.value)


def _add_member(rng: Random, found: list[Place], words: Vocabulary) -> None:
    parents = [place.parent for place in found if isinstance(place.parent, Members)]
    if parents and words.keys:
        key = rng.choice(words.keys)
        value = rng.choice(words.words[key]) if key in words.words and rng.random() < 0.5 else _odd(rng)
        rng.choice(parents).append((key, value))


def _copy_value(rng: Random, found: list[Place], words: Vocabulary) -> None:
    """Copy a value from elsewhere in the event, or a complete other event, which may increase the depth."""
    place = rng.choice(found)
    if rng.random() < 0.7:
        place.put(Raw(write(rng.choice(found).value).decode("utf-8", "surrogatepass")))
    elif words.events:
        place.put(Raw(rng.choice(words.events).decode("utf-8", "replace")))


def _wrap(rng: Random, found: list[Place], words: Vocabulary) -> None:
    place = rng.choice(found)
    value = place.value
    key = rng.choice(words.keys) if words.keys else "a"
    place.put(
        rng.choice(([value], [value, value], Members([(key, value)]), [[value]], json.dumps(str(value))))
    )


def _unwrap(rng: Random, found: list[Place], words: Vocabulary) -> None:
    inner = [place for place in found if places(place.value)]
    if inner:
        place = rng.choice(inner)
        place.put(rng.choice(places(place.value)).value)


def _break_string(rng: Random, found: list[Place], words: Vocabulary) -> None:
    """Cut a text in the middle of a character, or insert invalid characters."""
    texts = [place for place in found if isinstance(place.value, str)]
    if texts:
        place = rng.choice(texts)
        at = rng.randrange(len(place.value) + 1)
        bad = rng.choice(
            ("\ud83d", "\ude00", "\ud83d\ud83d\ude00", "\0", "\u2028", "\ufffe", "</think>", "<think>")
        )
        place.put(place.value[:at] + bad + place.value[at:])


_ON_BYTES: dict[str, Bytes] = {
    "flip": _flip,
    "delete": _delete,
    "double": _double,
    "insert": _insert,
    "overwrite": _overwrite,
    "cut-off": _cut_off,
    "behead": _behead,
    "line-ends": _line_ends,
    "reframe": _reframe,
}
_ON_FRAMES: dict[str, Frames] = {
    "drop-frames": _drop_frames,
    "repeat-frames": _repeat_frames,
    "swap-frames": _swap_frames,
    "move-frame": _move_frame,
    "splice": _splice,
    "join-bodies": _join_bodies,
    "interleave": _interleave,
    "swap-payloads": _swap_payloads,
}
_ON_TREE: dict[str, Tree] = {
    "replace": _replace,
    "replace-many": _replace_many,
    "change-number": _change_number,
    "change-word": _change_word,
    "drop-member": _drop_member,
    "double-member": _double_member,
    "rename": _rename,
    "add-member": _add_member,
    "copy-value": _copy_value,
    "wrap": _wrap,
    "unwrap": _unwrap,
    "break-string": _break_string,
}
NAMES = (*_ON_TREE, *_ON_TREE, *_ON_FRAMES, *_ON_BYTES)
"""The names of all mutations; those that parse the event are listed twice, since they find the most."""


def mutate(name: str, number: int, body: bytes, other: bytes, words: Vocabulary) -> bytes:
    """Return the body after one mutation.

    Args:
        name: The name of the mutation.
        number: The seed of its choices.
        body: The body to mutate.
        other: Another body, for mutations that mix two.
        words: The vocabulary of the format, for mutations that change words.

    Returns:
        The mutated body, or the body as it was if the mutated one has more than 8 MiB.
    """
    mutated = _mutated(name, number, body, other, words)
    return mutated if len(mutated) <= _MOST_BYTES else body


def _mutated(name: str, number: int, body: bytes, other: bytes, words: Vocabulary) -> bytes:
    rng = Random(f"{name}/{number}")
    if not body:
        return body
    if name in _ON_BYTES:
        return _ON_BYTES[name](rng, body)
    frames = split(body)
    if name in _ON_FRAMES:
        _ON_FRAMES[name](rng, frames, split(other))
    else:
        # Usually one event; sometimes all of them, as a misconfigured server does.
        chosen = frames if rng.random() < 0.1 else [rng.choice(frames)] if frames else []
        state = rng.getstate()
        for frame in chosen:
            rng.setstate(state)
            _mutate_tree(_ON_TREE[name], rng, frame, words)
    return join(frames[:_MOST_FRAMES])


def _mutate_tree(mutation: Tree, rng: Random, frame: Frame, words: Vocabulary) -> None:
    try:
        root = [parse(frame.payload)]
    except ValueError:
        return
    found = places(root)
    # The outermost place is the complete payload, which is rarely chosen.
    mutation(rng, found if rng.random() < 0.05 else found[1:] or found, words)
    try:
        frame.payload = write(root[0]).replace(b"\n", b"") if root else b""
    except RecursionError:
        return  # too deep to be serialised here; such texts are inserted unparsed

"""Filters complete values: texts, JSON values and messages."""

import json
import re
from collections.abc import Sequence
from typing import Any, cast

import anyio.lowlevel
import rfc8785

from tailrace.server.runtime.stream_filter import FilterChain, StreamFilter
from tailrace.streaming.a2a.models import Message, Part
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI, without_extension_metadata
from tailrace.wrappers.messages import join_surrogates

_CONSTANTS = frozenset(("channel", "finishReason", "finishReasons"))
"""Members of the extension's metadata that are not filtered, because the extension defines their values."""

_ENTRIES = frozenset(("approval_requests", "tool_calls", "tool_results"))
"""Members of data parts with a list of objects. The member names of these objects are not filtered."""

_JSON_TEXTS = frozenset(("arguments_text", "canonical_arguments"))
"""Members of the objects in `_ENTRIES` that contain JSON text. The text may be incomplete."""

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}

_TEXTS = 256
"""Number of texts after which other asyncio tasks may run."""


class ValueFilter:
    """Applies stream filters to complete values. The methods also raise the errors of the filters.

    Args:
        filters: The filters, in order.

    Attributes:
        checked: Texts, and data as JSON, that the filters with the scope ``content`` have accepted. These filters do not check
            messages of such texts again.
    """

    def __init__(self, filters: tuple[StreamFilter, ...]) -> None:
        self._filters = tuple(each for each in filters if each.scope != "output")
        self._value_filters = tuple(each for each in filters if each.scope == "all")
        self._data_filters = tuple(each for each in filters if each.scope == "content")
        self._texts = 0
        self.checked: set[str] = set()

    async def message(self, message: Message) -> Message:
        """Filter a message, except for its ids."""
        is_checked = all(part.text is None or part.text in self.checked for part in message.parts)
        filters = self._value_filters if is_checked else self._filters
        parts = await self.parts(message.parts, FilterChain(filters), closes=True)
        return message.model_copy(
            update={"parts": tuple(parts), "metadata": await self.metadata(message.metadata)}
        )

    async def parts(self, parts: Sequence[Part], chain: FilterChain, *, closes: bool) -> list[Part]:
        """Filter parts. Consecutive text parts with the same metadata are filtered as one text.

        Args:
            parts: The parts.
            chain: The filters of the text to which the first part belongs.
            closes: True if no further text follows the last part.
        """
        passed: list[Part] = []
        for position, part in enumerate(parts):
            following = parts[position + 1] if position + 1 < len(parts) else None
            if part.text is None:
                passed.append(await self._content(part))
                continue
            text = await chain.feed(part.text)
            is_end = following is None or following.text is None or following.metadata != part.metadata
            if is_end and (closes or following is not None):
                text += await chain.close()
                chain = FilterChain(chain.filters)
            metadata = await self.metadata(part.metadata)
            passed.append(part.model_copy(update={"text": text, "metadata": metadata}))
        return passed

    async def _content(self, part: Part) -> Part:
        """Filter a part that is not text. The bytes of files are not filtered."""
        metadata = await self.metadata(part.metadata)
        changed: dict[str, Any] = {"metadata": metadata, "filename": await self.text(part.filename)}
        if part.url is not None:
            changed["url"] = await self.text(part.url)
        if part.kind == "data":
            changed["data"] = data = await self._data(part.data)
            if data != part.data or metadata != part.metadata:
                # The model's JSON text of the arguments still contains the filtered text.
                changed["metadata"] = without_extension_metadata(metadata, "argumentsText")
            if self._data_filters:
                await self._check(json.dumps(_unescaped_members(part.data), ensure_ascii=False))
        return part.model_copy(update=changed)

    async def _check(self, data: str) -> None:
        if data not in self.checked:
            chain = FilterChain(self._data_filters)
            await chain.feed(data)
            await chain.close()
            self.checked.add(data)

    async def _data(self, data: Any) -> Any:
        if not isinstance(data, dict):
            return await self.value(data)
        passed: dict[str, Any] = {}
        for name, value in cast("dict[str, Any]", data).items():
            if name in _ENTRIES and isinstance(value, list):
                passed[name] = [await self._entry(each) for each in cast("list[Any]", value)]
            else:
                passed[await self.text(name)] = await self.value(value)
        return passed

    async def _entry(self, entry: Any) -> Any:
        if not isinstance(entry, dict):
            return await self.value(entry)
        members = cast("dict[str, Any]", entry)
        passed = {name: await self._member(name, value) for name, value in members.items()}
        if "canonical_arguments" in passed and passed.get("arguments") != members.get("arguments"):
            passed["canonical_arguments"] = rfc8785.dumps(passed["arguments"]).decode()
        return passed

    async def metadata(self, metadata: dict[str, Any]) -> dict[str, Any]:
        """Filter metadata."""
        passed: dict[str, Any] = {}
        for name, value in metadata.items():
            if name == EXTENSION_URI and isinstance(value, dict):
                own = cast("dict[str, Any]", value)
                passed[name] = {
                    key: each if key in _CONSTANTS else await self._member(key, each)
                    for key, each in own.items()
                }
            else:
                passed[name] = await self.value(value)
        return passed

    async def value(self, value: Any) -> Any:
        """Filter the texts, names and numbers of a JSON value."""
        if isinstance(value, str):
            return await self.text(value)
        if isinstance(value, dict):
            members = cast("dict[str, Any]", value)
            return {await self.text(name): await self._member(name, each) for name, each in members.items()}
        if isinstance(value, list | tuple):
            return [await self.value(each) for each in cast("Sequence[Any]", value)]
        if isinstance(value, int | float) and not isinstance(value, bool):
            text = str(value)
            passed = await self.text(text)
            return value if passed == text else passed
        return value

    async def _member(self, name: str, value: Any) -> Any:
        if name in _JSON_TEXTS and isinstance(value, str):
            return await self._json_text(value)
        if name == "argumentsText" and isinstance(value, list):
            return [each and await self._json_text(each) for each in cast("list[str | None]", value)]
        return await self.value(value)

    async def _json_text(self, text: str) -> str:
        """Filter a JSON text. If its decoded text contains a match, return the decoded and filtered text."""
        decoded = _unescaped(text)
        passed = await self.text(decoded)
        return passed if passed != decoded else await self.text(text)

    async def text(self, text: str) -> str:
        """Filter a complete text."""
        if not text:
            return text
        self._texts += 1
        if self._texts % _TEXTS == 0:
            await anyio.lowlevel.checkpoint()
        chain = FilterChain(self._value_filters)
        passed = await chain.feed(text)
        return passed + await chain.close()


def _unescaped(text: str) -> str:

    def character(found: re.Match[str]) -> str:
        code, other = found.groups()
        return chr(int(code, 16)) if code else _ESCAPED.get(other, other)

    return join_surrogates(_ESCAPE.sub(character, text)) if "\\" in text else text


def _unescaped_members(value: Any) -> Any:
    if isinstance(value, list):
        return [_unescaped_members(each) for each in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {
            name: _unescaped(each)
            if name in _JSON_TEXTS and isinstance(each, str)
            else _unescaped_members(each)
            for name, each in cast("dict[str, Any]", value).items()
        }
    return value

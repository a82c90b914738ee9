"""Text parts as one string: separate texts, and blocks of one text."""

from dataclasses import replace

import pytest

from support.upstream import ScriptedUpstream, openai_stream
from tailrace.wrappers import ContentPart, ContentPartFile, ContentPartText, History, Message, Role
from tailrace.wrappers.conversion.text_joining import message_text
from tailrace.wrappers.openai.converter import plain_content
from tailrace.wrappers.providers import Provider, find_provider

CITED = {"anthropic": {"citations": [{"url": "https://example.com"}]}}


def text_part(text: str, **metadata: object) -> ContentPartText:
    return ContentPartText(text=text, metadata=metadata)


@pytest.mark.parametrize("role", [Role.USER, Role.MODEL, Role.TOOL])
def test_the_texts_of_a_message_are_joined_with_a_blank_line(role: Role) -> None:
    content: tuple[ContentPart, ...] = (
        text_part("a"),
        text_part(""),
        ContentPartFile(data=b"x"),
        text_part("b"),
    )
    assert message_text(Message(role=role, content=content)) == "a\n\nb"


def test_blocks_into_which_a_provider_divided_a_text_are_one_text() -> None:
    blocks = text_part("It is "), text_part("21 C", **CITED), text_part(" there.")
    assert message_text(Message(role=Role.MODEL, content=blocks)) == "It is 21 C there."


def test_a_caller_has_no_such_blocks() -> None:
    parts = text_part("a", note="mine"), text_part("b", note="too")
    assert message_text(Message(role=Role.USER, content=parts)) == "a\n\nb"


def test_items_with_ids_of_their_own_are_texts_of_their_own() -> None:
    items = [text_part(text, **{"openai-responses": {"id": f"msg_{text}"}}) for text in "ab"]
    assert message_text(Message(role=Role.MODEL, content=tuple(items))) == "a\n\nb"


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("user", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
        ("system", "a\n\nb"),
        ("assistant", "a\n\nb"),
        ("tool", "a\n\nb"),
    ],
)
def test_only_a_users_texts_stay_a_list_in_a_request_to_chat_completions(role: str, expected: object) -> None:
    content = [{"type": "text", "text": text} for text in ("a", "", "b")]
    assert plain_content({"role": role, "content": content}) == {"role": role, "content": expected}
    assert plain_content({"role": role, "content": content[:2]}) == {"role": role, "content": "a"}


def test_a_provider_that_takes_no_list_gets_one_string() -> None:
    content = [{"type": "text", "text": text} for text in ("a", "b")]
    assert plain_content({"role": "user", "content": content}, parts=False)["content"] == "a\n\nb"
    assert not find_provider("deepseek").content_parts
    assert find_provider("openai").content_parts


@pytest.mark.parametrize(
    ("provider", "content"),
    [
        (Provider("strings", "openai", base_url="", content_parts=False), "a\n\nb"),
        (Provider("lists", "openai", base_url=""), [{"type": "text", "text": text} for text in ("a", "b")]),
    ],
)
async def test_what_a_provider_takes_holds_at_its_own_address(provider: Provider, content: object) -> None:
    message = Message(role=Role.USER, content=(text_part("a"), text_part("b")))
    async with ScriptedUpstream(openai_stream(["ok"])) as upstream:
        model = replace(provider, base_url=upstream.base_url).create_model("m", api_key="none")
        async with model.stream(History(conversation=(message,))):
            pass
        await model.aclose()
    assert upstream.requests[0].json["messages"] == [{"role": "user", "content": content}]


def test_content_with_more_than_text_stays_as_it_is() -> None:
    content = [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]
    assert plain_content({"role": "system", "content": content})["content"] == content
    assert plain_content({"role": "assistant", "content": None}) == {"role": "assistant", "content": None}

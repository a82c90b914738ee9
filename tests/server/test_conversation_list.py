"""The list of a caller's conversations: titles, order, search, pages, branches, renaming and deletion."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import pytest

from support.agents import Scripted, echo
from support.http_json import HttpJson
from support.live_server import serving
from support.rpc import Rpc, message
from support.ui_streams import RUN
from tailrace.server import Settings, create_app
from tailrace.server.runtime.word_filters import WordFilter
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI


@asynccontextmanager
async def server(store: str = "sqlite://", handler: Any = echo, **options: Any) -> AsyncGenerator[Rpc]:
    app = create_app(Settings(store=store), handler=handler, **options)
    async with serving(app) as url, Rpc(url) as rpc:
        yield rpc


async def send(rpc: Rpc, text: str, context_id: str = "", **fields: Any) -> dict[str, Any]:
    named = {"contextId": context_id} if context_id else {}
    return (await rpc.result("SendMessage", message(text, **named, **fields)))["task"]


async def listed(rpc: Rpc, **filters: Any) -> list[tuple[str, str]]:
    """The ids and titles of a page."""
    page = await rpc.result("ListConversations", filters)
    return [(each["contextId"], each["title"]) for each in page["conversations"]]


def branch_of(context_id: str, message_id: str) -> dict[str, Any]:
    branch = {"contextId": context_id, "messageId": message_id}
    return {"metadata": {EXTENSION_URI: {"branch": branch}}}


async def test_conversations_are_listed_by_their_newest_messages(store_url: str) -> None:
    async with server(store_url) as rpc:
        for text, context_id in (("  Name\n a river. ", "a"), ("ask", "b"), ("More", "a")):
            task = await send(rpc, text, context_id)
        assert await listed(rpc) == [("a", "Name a river."), ("b", "ask")]
        [first, second] = (await rpc.result("ListConversations", {}))["conversations"]
        assert first["updateTime"] > second["updateTime"]
        assert set(first) == {"contextId", "title", "createTime", "updateTime"}
        assert first["createTime"] < second["createTime"] == second["updateTime"]
        [waiting] = (await rpc.result("ListTasks", {"contextId": "b"}))["tasks"]
        await send(rpc, "answer", "b", taskId=waiting["id"])
        assert await listed(rpc) == [("b", "ask"), ("a", "Name a river.")]
        await rpc.result("DeleteTask", {"id": task["id"]})
        assert await listed(rpc) == [("b", "ask"), ("a", "Name a river.")]
    async with server(store_url) as rpc:  # after a restart
        assert await listed(rpc) == [("b", "ask"), ("a", "Name a river.")]


async def test_a_message_to_a_running_task_moves_its_conversation_to_the_front() -> None:
    scripted = Scripted()
    async with server(handler=scripted) as rpc:
        configuration = {"returnImmediately": True}
        params = {**message("hold", contextId="a"), "configuration": configuration}
        held = (await rpc.result("SendMessage", params))["task"]
        await send(rpc, "b", "b")
        assert await listed(rpc) == [("b", "b"), ("a", "hold")]
        params = {**message("next", taskId=held["id"]), "configuration": configuration}
        await rpc.result("SendMessage", params)
        assert await listed(rpc) == [("a", "hold"), ("b", "b")]
        scripted.go_on.set()


@pytest.mark.parametrize(
    ("parts", "title"),
    [
        ([{"text": "x" * 100}], "x" * 60),
        ([{"text": "one two " * 20}], ("one two " * 20)[:60].strip()),
        ([{"text": "a\tb\u2003c\x00d"}, {"text": "e"}], "a b c d e"),
        ([{"data": {"a": 1}}, {"raw": "aGk=", "filename": "plan  b.txt"}], "plan b.txt"),
        ([{"url": "https://example.com/a", "filename": ""}, {"raw": "aGk=", "filename": "b"}], ""),
        ([{"raw": "aGk=", "filename": "a"}, {"text": "What is this?"}], "What is this?"),
        ([{"text": " "}, {"data": {"a": 1}}], ""),
        ([{"text": "\u00e9\U0001f30a" * 40}], "\u00e9\U0001f30a" * 30),
    ],
)
async def test_the_default_title_is_the_beginning_of_the_first_message(
    parts: list[dict[str, Any]], title: str
) -> None:
    async with server(handler=Scripted()) as rpc:
        params = message(contextId="c")
        params["message"]["parts"] = parts
        await rpc.call("SendMessage", params)
        assert await listed(rpc) == [("c", title)]


async def test_every_conversation_can_be_found_by_its_title(store_url: str) -> None:
    async with server(store_url) as rpc:
        titles = ["Der Große Ärger", "100 % of_it", "100 \\ of-it", "Give me a\x00name"]
        for at, title in enumerate(titles):
            await send(rpc, title, f"c{at}")
        for at in range(5):
            await send(rpc, "m", f"filler{at}")
        for query, found in (
            ("GROSSE ärger", ["c0"]),
            ("% OF", ["c1"]),
            ("of_it", ["c1"]),
            ("\\ ", ["c2"]),
            ("100", ["c2", "c1"]),
            ("give me a name", ["c3"]),
            ("nothing", []),
        ):
            assert [context for context, _ in await listed(rpc, query=query)] == found, query
        error = await rpc.error("ListConversations", {"query": "x" * 201})
        assert (error["code"], "query" in error["message"]) == (-32602, True)


async def test_pages_continue_after_the_last_conversation(store_url: str) -> None:
    async with server(store_url) as rpc:
        names = [f"{'é' * 250}{at}" for at in range(5)]
        for name in names:
            await send(rpc, "river", name)
        found: list[str] = []
        filters: dict[str, Any] = {"pageSize": 2, "query": "RIVER"}
        while True:
            page = await rpc.result("ListConversations", filters)
            found += [each["contextId"] for each in page["conversations"]]
            if "nextPageToken" not in page:
                break
            filters["pageToken"] = page["nextPageToken"]
        assert found == names[::-1]
        for wrong in ({"query": "other"}, {"relatedTo": names[0]}, {"pageToken": "x"}, {"pageSize": 0}):
            error = await rpc.error("ListConversations", {**filters, **wrong})
            assert error["code"] == -32602


async def test_a_branch_names_the_message_before_which_it_begins(store_url: str) -> None:
    async with server(store_url) as rpc:
        first = await send(rpc, "one", "a")
        one = first["history"][0]["messageId"]
        two = (await send(rpc, "two", "a"))["history"][0]["messageId"]
        branched = await send(rpc, "two, changed", **branch_of("a", two))
        again = await send(rpc, "one, changed", **branch_of(branched["contextId"], one))
        await send(rpc, "another", "b")
        contexts = [again["contextId"], branched["contextId"], "a"]
        entries = (await rpc.result("ListConversations", {"relatedTo": "a"}))["conversations"]
        assert [(each["contextId"], each["title"]) for each in entries] == list(
            zip(contexts, ["one, changed", "two, changed", "one"], strict=True)
        )
        assert [each.get("branch") for each in entries] == [
            {
                "messageId": again["history"][0]["messageId"],
                "from": {"contextId": branched["contextId"], "messageId": one},
            },
            {
                "messageId": branched["history"][0]["messageId"],
                "from": {"contextId": "a", "messageId": two},
            },
            None,
        ]
        for related in contexts:
            assert [context for context, _ in await listed(rpc, relatedTo=related)] == contexts
        assert await listed(rpc, relatedTo="b") == [("b", "another")]
        assert await listed(rpc, relatedTo="unknown") == []
        # The branches of a deleted conversation still belong together.
        await rpc.result("DeleteConversation", {"contextId": "a"})
        assert [context for context, _ in await listed(rpc, relatedTo=contexts[0])] == contexts[:2]
        # Without its first message, a conversation is no longer a branch.
        await send(rpc, "later", again["contextId"])
        await rpc.result("DeleteTask", {"id": again["id"]})
        [later, _] = (await rpc.result("ListConversations", {"relatedTo": contexts[1]}))["conversations"]
        assert (later["title"], "branch" in later) == ("later", False)


async def test_a_conversation_can_be_renamed(store_url: str) -> None:
    async with server(store_url) as rpc:
        await send(rpc, "Name a river.", "a")
        before = (await rpc.result("ListConversations", {}))["conversations"][0]
        renamed = await rpc.result("RenameConversation", {"contextId": "a", "title": " My\nRivers  "})
        assert renamed == {**before, "title": "My Rivers"}
        assert await listed(rpc, query="my rivers") == [("a", "My Rivers")]
        assert await listed(rpc, query="name") == []
        await send(rpc, "More", "a")
        assert await listed(rpc) == [("a", "My Rivers")]
        long = "y" * 200
        await rpc.result("RenameConversation", {"contextId": "a", "title": long})
        assert await listed(rpc, query=long) == [("a", long)]
        for title in ("", " \n"):
            await rpc.result("RenameConversation", {"contextId": "a", "title": "x"})
            restored = await rpc.result("RenameConversation", {"contextId": "a", "title": title})
            assert restored["title"] == "Name a river."
        for params in ({"contextId": "a", "title": "x" * 201}, {"contextId": "a"}, {"title": "x"}):
            assert (await rpc.error("RenameConversation", params))["code"] == -32602
        error = await rpc.error("RenameConversation", {"contextId": "unknown", "title": "x"})
        assert error["code"] == -32001
        assert error["data"][0]["metadata"] == {"contextId": "unknown"}


async def test_the_addresses_of_http_json_have_the_same_operations() -> None:
    async with server() as rpc:
        http = HttpJson(rpc)
        await send(rpc, "Name a river.", "a/b")
        await send(rpc, "Name a lake.", "b")
        entry = await http.ok("PATCH", f"/conversations/{quote('b', safe='')}", {"title": "Lakes"})
        page = await http.ok("GET", "/conversations?query=LAKE&pageSize=1")
        assert page == {"conversations": [entry]}
        page = await http.ok("GET", "/conversations?pageSize=1")
        rest = await http.ok("GET", f"/conversations?pageSize=1&pageToken={page['nextPageToken']}")
        assert [each["contextId"] for each in rest["conversations"]] == ["a/b"]
        assert await http.ok("GET", "/acme/conversations") == {"conversations": []}
        status, problem = await http.ask("PATCH", "/acme/conversations/b", {"title": "x"})
        assert (status, problem["error"]["status"]) == (404, "NOT_FOUND")


async def test_deletion_removes_titles_with_their_messages(store_url: str) -> None:
    async with server(store_url) as rpc:
        first = await send(rpc, "secret one", "a")
        await send(rpc, "two", "a")
        await rpc.result("DeleteTask", {"id": first["id"]})
        assert await listed(rpc) == [("a", "two")]
        await rpc.result("RenameConversation", {"contextId": "a", "title": "named"})
        await rpc.result("DeleteConversation", {"contextId": "a"})
        assert await listed(rpc) == []
        await send(rpc, "three", "a")
        assert await listed(rpc) == [("a", "three")]


async def test_an_input_filter_blocks_titles() -> None:
    async with server(input_filters=[WordFilter(["Falcon"])]) as rpc:
        await send(rpc, "A river", "a")
        assert (await rpc.error("SendMessage", message("Falcon", contextId="b")))["code"] == -32602
        error = await rpc.error("RenameConversation", {"contextId": "a", "title": "the falcon"})
        assert error["data"][0]["reason"] == "CONTENT_FILTERED"
        assert await listed(rpc) == [("a", "A river")]


def requests_of(text: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Requests with a text, by their protocol."""
    user = {"role": "user", "content": text}
    part = {"type": "text", "text": text}
    old = {"role": "user", "parts": [{"kind": "text", "text": text}], "messageId": "m", "kind": "message"}
    oldest = {"role": "user", "parts": [part]}
    return {
        "a2a": ("/", {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": message(text)}),
        "a2a 0.3": ("/", {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": old}}),
        "a2a 0.1": ("/", {"jsonrpc": "2.0", "id": 1, "method": "tasks/send", "params": {"id": "t", "message": oldest}}),
        "http+json": ("/message:send", message(text)),
        "chat": ("/v1/chat/completions", {"model": "", "messages": [user]}),
        "chat, earlier": (
            "/v1/chat/completions",
            {"model": "", "messages": [user, {"role": "assistant", "content": "?"}, {**user, "content": "hi"}]},
        ),
        "completions": ("/v1/completions", {"model": "", "prompt": text}),
        "responses": ("/v1/responses", {"model": "", "input": text}),
        "ai-sdk": (
            "/ai-sdk",
            {"id": "c1", "messages": [{"id": "u1", "role": "user", "parts": [part]}], "trigger": "submit-message"},
        ),
        "ag-ui": ("/ag-ui", {**RUN, "messages": [{"id": "u1", **user}]}),
    }  # fmt: skip


@pytest.mark.parametrize("wire", requests_of(""))
async def test_conversations_of_every_protocol_are_listed(wire: str) -> None:
    async with server() as rpc:
        path, body = requests_of("Name  a river")[wire]
        headers = {"A2A-Version": wire.removeprefix("a2a ") if wire.startswith("a2a 0") else "1.0"}
        async with rpc.http.post(rpc.url + path, json=body, headers=headers) as response:
            assert response.status == 200, await response.text()
            await response.read()
        tasks = (await rpc.result("ListTasks", {}))["tasks"]
        assert await listed(rpc) == [(task["contextId"], "Name a river") for task in tasks]
        assert len(tasks) == 1


async def test_items_alone_are_not_a_listed_conversation() -> None:
    async with server() as rpc:
        http = HttpJson(rpc)
        item = {"type": "message", "role": "user", "content": "item"}
        made = await http.ok("POST", "/v1/conversations", {"items": [item]})
        assert await listed(rpc) == []
        await http.ok(
            "POST", "/v1/responses", {"model": "", "input": "Name a river", "conversation": made["id"]}
        )
        assert await listed(rpc) == [(made["id"], "Name a river")]


async def test_a_response_that_continues_an_earlier_one_is_another_conversation() -> None:
    async with server() as rpc:
        http = HttpJson(rpc)
        first = await http.ok("POST", "/v1/responses", {"model": "", "input": "one"})
        for text in ("two", "three"):
            await http.ok(
                "POST", "/v1/responses", {"model": "", "input": text, "previous_response_id": first["id"]}
            )
        titles = [title for _, title in await listed(rpc)]
        assert titles == ["one", "one"]

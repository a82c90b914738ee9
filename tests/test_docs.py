"""The documentation is correct: its examples run, its links have targets, its tables are complete.

``python tests/test_docs.py`` rewrites the tables in docs/settings.md and docs/providers.md, docs/origins.md, and the schema.
"""

import inspect
import json
import re
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import anyio.from_thread
import anyio.to_thread
import pytest
import typer.core
import typer.main
import yaml
from fastapi import FastAPI
from pydantic import BaseModel, SecretStr
from pydantic_core import PydanticUndefined

import tailrace.server
from support.live_server import serving
from support.origin_rows import origins_page
from support.pages import BLOCK, Block, blocks
from support.rounds import answer
from support.rpc import Rpc, message, streamed_text
from support.upstream import Received, ScriptedUpstream, Step, json_answer
from tailrace.server import (
    Bounds,
    Budget,
    CardSettings,
    JwtSettings,
    ModelPrice,
    OpenAIWebhookSettings,
    RetentionSettings,
    Settings,
    create_app,
)
from tailrace.server.cli.commands import create_cli
from tailrace.server.config_file import json_schema, read_config
from tailrace.server.former_settings import MOVED, REPLACED, moved_to
from tailrace.server.protocols.a2a.card import build_card
from tailrace.server.several_agents import create_several_agents_app
from tailrace.streaming import EXTENSION_URI
from tailrace.streaming.a2a import (
    A2AModel,
    AgentExtension,
    ListConversationsResponse,
    Message,
    StreamResponse,
)
from tailrace.wrappers import SSEDecoder
from tailrace.wrappers import providers as registry
from tailrace.wrappers.providers import FORMATS, providers

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("benchmarks/*.md"),
        *ROOT.glob("examples/*.md"),
    ]
)
SETTINGS_PAGE = ROOT / "docs/settings.md"
PROVIDERS_PAGE = ROOT / "docs/providers.md"
AGENTS_PAGE = ROOT / "docs/agents.md"
CONCEPTS_PAGE = ROOT / "docs/concepts.md"
SKILL_PAGE = ROOT / "SKILL.md"
LIST_OF_PAGES = ROOT / "docs/llms.txt"
EMBEDDING_PAGE = ROOT / "docs/embedding.md"
EXTENSION_PAGE = ROOT / "docs/extension.md"
AGENTS_FILE_PAGE = ROOT / "docs/several-agents.md"
SCHEMA_FILE = ROOT / "docs/tailrace.schema.json"

_TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def run(block: Block) -> dict[str, Any]:
    """Run a block of Python in a new module; return its names."""
    names: dict[str, Any] = {"__name__": "readme"}
    # Keep the line numbers of the page for tracebacks.
    code = compile("\n" * (block.line - 1) + block.text, str(ROOT / "README.md"), "exec")
    exec(code, names)
    return names


@pytest.fixture(autouse=True)
def _in_the_projects_folder(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("TAILRACE_STORE", "sqlite://")
    # Undo the registrations of an example.
    for name in ("_providers", "_names"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))


PYTHON = [
    block
    for page in (
        ROOT / "README.md",
        PROVIDERS_PAGE,
        ROOT / "docs/agent-card.md",
        ROOT / "docs/sdk.md",
        ROOT / "docs/errors.md",
        ROOT / "docs/approvals.md",
        CONCEPTS_PAGE,
    )
    for block in blocks(page, "python")
]


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: f"line {block.line}")
def test_the_python_of_the_pages_runs_and_prints_the_documented_output(
    block: Block, capsys: pytest.CaptureFixture[str]
) -> None:
    run(block)
    assert capsys.readouterr().out == (block.output or "")


@pytest.mark.parametrize("page", ["authentication", "usage"])
def test_the_servers_of_a_page_respond_as_documented(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    for block in blocks(ROOT / f"docs/{page}.md", "python"):
        run(block)
        assert capsys.readouterr().out == block.output


def _say_as_the_page_says(request: Received) -> list[bytes]:
    """The response of the model on the page about agents."""
    last = request.json["messages"][-1]["content"]
    towns = [{"name": "Basel", "country": "Switzerland"}, {"name": "Porto", "country": "Portugal"}]
    return {
        "What is the weather in Paris?": answer(calls=[("a", "get_weather", {"city": "Paris"})]),
        "72°F in Paris": answer("It is 72°F in Paris."),
        "And in Rome?": answer(calls=[("b", "get_weather", {"city": "Rome"})]),
        "72°F in Rome": answer("72°F there, too."),
        "Is it warm in Oslo?": answer("I look.", calls=[("a", "get_weather", {"city": "Oslo"})]),
        "72°F in Oslo": answer("Yes, ", "it is."),
        "Paint the shed.": answer(calls=[("a", "ask_user", {})]),
        "blue": answer("Blue it is."),
        "Two towns on a river.": answer(json.dumps({"result": towns})),
    }[last]


@pytest.mark.parametrize("block", blocks(AGENTS_PAGE, "python"), ids=lambda block: f"line {block.line}")
def test_the_agents_of_their_page_respond_as_documented(
    block: Block, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(ScriptedUpstream(_say_as_the_page_says)) as upstream,
    ):
        monkeypatch.setenv("OPENAI_BASE_URL", upstream.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        run(block)
    assert capsys.readouterr().out == (block.output or "")


def _moderate(request: Received) -> list[Step]:
    result = {
        "flagged": "threat" in request.json["input"],
        "categories": {"violence": "threat" in request.json["input"]},
        "category_scores": {"violence": 0.4 if "fight" in request.json["input"] else 0.1},
    }
    return json_answer({"results": [result]})


@pytest.mark.parametrize(
    "block", blocks(ROOT / "docs/filters.md", "python"), ids=lambda block: f"line {block.line}"
)
def test_the_filters_of_their_page_print_the_documented_output(
    block: Block, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(ScriptedUpstream(_moderate)) as endpoint,
    ):
        monkeypatch.setenv("OPENAI_BASE_URL", endpoint.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        run(block)
    assert capsys.readouterr().out == block.output


async def test_the_schema_of_a_request_is_enforced_as_documented(capsys: pytest.CaptureFixture[str]) -> None:
    [client] = blocks(ROOT / "docs/filters.md", "py")
    async with ScriptedUpstream(lambda _: answer('{"unit": "fahrenheit"}')) as upstream:
        settings = Settings(
            model="openai:m",
            base_url=upstream.base_url,
            api_key=SecretStr("none"),
            store="sqlite://",
            filters=("request-schema",),
        )
        async with serving(create_app(settings)) as url:
            asking = client._replace(text=client.text.replace("http://127.0.0.1:8000", url))
            await anyio.to_thread.run_sync(run, asking)
    assert capsys.readouterr().out == client.output


async def test_the_applications_of_the_readme_answer() -> None:
    applications = {
        name: value for block in PYTHON for name, value in _names_of(block) if isinstance(value, FastAPI)
    }
    assert set(applications) == {"app", "own_app"}
    for name, path in (("app", ""), ("own_app", "/agent")):
        async with serving(applications[name]) as url, Rpc(url + path) as rpc:
            events = await rpc.stream("SendStreamingMessage", message("one three"))
            async with rpc.http.get(f"{url}{path}/.well-known/agent-card.json") as response:
                card = await response.json()
        assert streamed_text(events) == "Lengths: 3 5"
        assert events[-1][1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
        assert card["supportedInterfaces"][0]["url"] == f"{url}{path}/"


async def test_the_applications_of_the_page_on_embedding_work_as_documented(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    async with ScriptedUpstream(_say_as_the_page_says) as upstream:
        monkeypatch.setenv("OPENAI_BASE_URL", upstream.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        pages = [run(block) for block in blocks(EMBEDDING_PAGE, "python")]
        beside, tools, waits, sessions = [page["app"] for page in pages]
        async with serving(beside) as url, Rpc(f"{url}/agent") as rpc:
            events = await rpc.stream("SendStreamingMessage", message("Finish."))
            async with rpc.http.get(f"{url}/health") as response:
                assert await response.json() == {"status": "ok"}
            async with rpc.http.get(f"{url}/agent/.well-known/agent-card.json") as response:
                assert (await response.json())["name"] == "Finisher"
        assert events[-1][1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
        assert (tmp_path / "agent.db").exists()
        async with serving(tools) as url, Rpc(url) as rpc:
            events = await rpc.stream("SendStreamingMessage", message("What is the weather in Paris?"))
        assert "It is 72°F in Paris." in streamed_text(events)
    async with serving(waits) as url, Rpc(url) as rpc:
        task = (await rpc.result("SendMessage", message("Finish.")))["task"]
        assert task["status"]["state"] == "TASK_STATE_AUTH_REQUIRED"
        pages[2]["tokens"][task["id"]] = "T"
        events = await rpc.stream("SubscribeToTask", {"id": task["id"]}, {"last-event-id": "0"})
        assert streamed_text(events) == "authorized by T"
    async with serving(sessions) as url, Rpc(url) as rpc:
        for token, status in (("wrong", 401), ("s3cret", 200)):
            call = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": message("Finish.")}
            headers = {"authorization": f"Bearer {token}"}
            async with rpc.http.post(url, json=call, headers=headers) as response:
                assert response.status == status
        async with rpc.http.get(f"{url}/.well-known/agent.json") as response:
            assert (await response.json())["securitySchemes"]["session"] == {
                "type": "http",
                "scheme": "Bearer",
            }


async def test_what_coding_assistants_are_shown_works(capsys: pytest.CaptureFixture[str]) -> None:
    agent, client = blocks(SKILL_PAGE, "python")
    async with serving(run(agent)["app"]) as url:
        asking = client._replace(text=client.text.replace("http://127.0.0.1:8000", url))
        await anyio.to_thread.run_sync(run, asking)
    assert capsys.readouterr().out == client.output


async def test_the_configuration_file_of_its_page_serves_the_agents_as_documented(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [file] = blocks(AGENTS_FILE_PAGE, "toml")
    [client] = blocks(AGENTS_FILE_PAGE, "python")
    path = tmp_path / "tailrace.toml"
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANN_KEY", "BOB_KEY"):
        monkeypatch.setenv(name, f"key-of-{name.partition('_')[0].lower()}")
    async with ScriptedUpstream(answer("It is on its way.")) as upstream:
        # The program of the tool is not installed with the tests.
        text = file.text.replace("mcp:uvx mcp-server-git", "support.approval_tools:buy")
        path.write_text(text.replace('model = "openai', f'base_url = "{upstream.base_url}"\nmodel = "openai'))
        app = create_several_agents_app(read_config(path, Settings(store="sqlite://")))
        async with serving(app) as url:
            asking = client._replace(text=client.text.replace("http://127.0.0.1:8000", url))
            await anyio.to_thread.run_sync(run, asking)
    assert capsys.readouterr().out == client.output


@pytest.mark.parametrize("page", [SKILL_PAGE, LIST_OF_PAGES], ids=lambda page: page.name)
def test_names_in_pages_for_coding_assistants_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    program = typer.main.get_command(create_cli())
    assert isinstance(program, typer.core.TyperGroup)
    assert set(re.findall(r"`tailrace ([a-z]+)", text)) <= program.commands.keys()
    for name in re.findall(r"`(tailrace(?:\.\w+)+)`", text):
        import_module(name)
    settings = {f"TAILRACE_{name.upper()}" for name in Settings.model_fields}
    assert set(re.findall(r"TAILRACE_[A-Z_]+", text)) <= settings
    for name in re.findall(r"handler=(\w+)\(|include_router\((\w+)\(", text):
        assert any(hasattr(tailrace.server, each) for each in name if each)


def test_names_of_the_table_of_concepts_can_be_imported_from_their_module() -> None:
    named: set[str] = set()
    for cells, module in re.findall(
        r"^\|(.+)\| `(tailrace[\w.]+)` \|$", CONCEPTS_PAGE.read_text(encoding="utf-8"), re.MULTILINE
    ):
        for name in re.findall(r"`(\w+)", cells.split("|")[1]):
            assert name in import_module(module).__all__, name
            named.add(name)
    assert {"ChoiceDeltaWrapper", "ResponseTranslator", "A2ATaskBridge", "TurnAccumulator"} <= named


def test_the_skill_describes_its_purpose() -> None:
    _, head, _ = SKILL_PAGE.read_text(encoding="utf-8").split("---\n", 2)
    front_matter = yaml.safe_load(head)
    assert front_matter.keys() == {"name", "description"}
    assert re.fullmatch(r"[a-z0-9-]{1,64}", front_matter["name"])
    assert len(front_matter["description"]) <= 1024


def test_every_page_is_in_the_list_for_programs() -> None:
    text = LIST_OF_PAGES.read_text(encoding="utf-8")
    assert re.match(r"# tailrace\n\n> .+\n\n(?:[^#].*\n)+\n## ", text)  # https://llmstxt.org
    listed = re.findall(r"^- \[[^\]]+\]\(([^)]+)\): .+$", text, re.MULTILINE)
    assert sorted(listed) == sorted(
        ["repository/SKILL.md", *(page.name for page in LIST_OF_PAGES.parent.glob("*.md"))]
    )


@pytest.mark.parametrize(
    "package",
    [
        "tailrace.wrappers",
        "tailrace.wrappers.openai",
        "tailrace.streaming",
        "tailrace.streaming.a2a",
        "tailrace.server",
    ],
)
def test_every_package_that_versions_cover_is_in_the_reference(package: str) -> None:
    assert f"`{package}`" in (ROOT / "docs/upgrading.md").read_text(encoding="utf-8")
    name = package.removeprefix("tailrace.").replace(".", "-")
    text = (ROOT / f"docs/reference/{name}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {package}\n")
    assert f"\n::: {package}\n" in text


def _names_of(block: Block) -> list[tuple[str, Any]]:
    return list(run(block).items()) if "create_app" in block.text else []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_that_a_page_prints_exist(page: Path) -> None:
    program = typer.main.get_command(create_cli())
    assert isinstance(program, typer.core.TyperGroup)
    targets = set(
        re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )
    for block in blocks(page, "sh"):
        for words in re.findall(r"^(?:\w+=\S+ )*(?:\.venv/bin/)?tailrace (.*)$", block.text, re.MULTILINE):
            command, *rest = words.partition("#")[0].split()
            assert command in program.commands
            known = {option for each in program.commands[command].params for option in each.opts}
            assert {word for word in rest if word.startswith("--")} <= known, words
        for target in re.findall(r"^make ([a-z0-9-]+)", block.text, re.MULTILINE):
            assert target in targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in _LINK.findall(BLOCK.sub("", page.read_text(encoding="utf-8"))):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        linked = page.parent / path if path else page
        assert linked.exists(), target
        assert ROOT in linked.resolve().parents, target
        if anchor:
            assert anchor in _anchors(linked), target


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_comparison_gives_the_ratios_of_the_page_on_performance() -> None:
    figures = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    compared = (ROOT / "docs/comparison.md").read_text(encoding="utf-8")
    [heads] = re.findall(r"^\|  \|(.+)\|\n\| ---", figures, re.MULTILINE)
    names = [name.strip() for name in heads.split("|")]
    for tokens, contestant, words in (
        ("500", "a2a-sdk, memory", "it was {:.0f} times (in memory)"),
        ("4,000", "a2a-sdk, memory", "took {:,.0f} times ours with its store in memory"),
        ("4,000", "a2a-sdk, SQLite", "{:,.0f} times ours with SQLite"),
    ):
        [row] = re.findall(rf"^\| one stream at once, {tokens} tokens \|(.+)\|$", figures, re.MULTILINE)
        ratio = row.split("|")[names.index(contestant)].strip().removesuffix("x").replace(",", "")
        assert words.format(float(ratio)) in " ".join(compared.split())


def test_the_changelog_begins_with_the_version_of_the_package() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## (?!Unreleased$)(\S+)", changelog, re.MULTILINE)
    assert newest is not None
    assert newest[1] == version


def test_every_setting_is_in_the_tables() -> None:
    page = SETTINGS_PAGE.read_text(encoding="utf-8")
    assert _TABLE.findall(page) == settings_tables(), "run python tests/test_docs.py to rewrite the tables"


def settings_tables() -> list[str]:
    """The tables of settings: of the card, of bounds, of all others, and of former settings."""
    former = ["| former setting | replacement |", "|---|---|"]
    for name, replacement in sorted({**REPLACED, **{name: moved_to(name) for name in MOVED}}.items()):
        verb, _, rest = replacement.partition(" ")
        former.append(f"| `TAILRACE_{name.upper()}` | {verb} {_code(rest) if verb != 'list' else rest} |")
    return [
        _fields_table(Settings, "TAILRACE_{}"),
        _fields_table(RetentionSettings),
        _fields_table(ModelPrice),
        _fields_table(Budget),
        _fields_table(JwtSettings),
        _fields_table(OpenAIWebhookSettings),
        _fields_table(Bounds),
        _fields_table(CardSettings),
        "\n".join(former) + "\n",
    ]


def _fields_table(model: type[BaseModel], form: str = "") -> str:
    """The table of a model: names and defaults from the fields, descriptions from its docstring."""
    described = _described(model)
    assert set(described) == set(model.model_fields)
    lines = [f"| {'setting' if form else 'member'} | default | meaning |", "|---|---|---|"]
    for name, field in model.model_fields.items():
        default = field.default
        if default in (None, "", (), PydanticUndefined) or isinstance(default, BaseModel):
            shown = ""
        elif isinstance(default, tuple):
            shown = _code(",".join(cast("tuple[str, ...]", default)))
        else:
            shown = _code(str(default).lower() if isinstance(default, bool) else str(default))
        lines.append(f"| {_code(form.format(name.upper()) or name)} | {shown} | {described[name]} |")
    return "\n".join(lines) + "\n"


def test_the_schema_of_the_configuration_file_is_current() -> None:
    published = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    assert published == config_schema(), "run python tests/test_docs.py to rewrite the schema"


def config_schema() -> dict[str, Any]:
    """The JSON Schema of the configuration file, with the descriptions of the docstrings."""
    schema = json_schema()
    of_settings = _described(Settings)
    for definition in (schema, *schema["$defs"].values()):
        text, _, attributes = definition.pop("description", "").partition("Attributes:\n")
        if text.strip():
            definition["description"] = text.strip()
        described = {**of_settings, **_descriptions(inspect.cleandoc(attributes))}
        for name, member in definition.get("properties", {}).items():
            member.pop("title", None)
            if name in described:
                member["description"] = described[name]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def test_every_provider_is_in_the_tables() -> None:
    page = PROVIDERS_PAGE.read_text(encoding="utf-8")
    assert _TABLE.findall(page) == provider_tables(), "run python tests/test_docs.py to rewrite the tables"


def provider_tables() -> list[str]:
    """The tables of providers and of formats, from the registry."""
    who = ["| provider | also called | format | key | address |", "|---|---|---|---|---|"]
    for each in providers():
        address = f"`{each.base_url_variable}`" if each.base_url_variable else each.base_url or ""
        cells = (
            _code(each.name),
            _code(*each.aliases),
            each.wire_format.title,
            _code(*each.key_variables),
            address,
        )
        who.append(f"| {' | '.join(cells)} |")
    what = [
        "| format | tool arguments arrive | reasoning | sends | streams | needs |",
        "|---|---|---|---|---|---|",
    ]
    for wire in FORMATS.values():
        extra = f"`pip install 'tailrace[{wire.extra}]'`" if wire.extra else ""
        sends, streams = (", ".join(("text", "tools", *more)) for more in (wire.sends, wire.streams))
        arriving = "complete" if wire.arguments == "whole" else "in fragments"
        what.append(f"| {wire.title} | {arriving} | {wire.reasoning} | {sends} | {streams} | {extra} |")
    return ["".join(f"{line}\n" for line in table) for table in (who, what)]


def _code(*names: str) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _described(documented: type) -> dict[str, str]:
    """The descriptions of the attributes in the docstring of a class."""
    return _descriptions(inspect.cleandoc(_attributes(documented)))


def _descriptions(attributes: str) -> dict[str, str]:
    found = re.findall(r"^(\w+): (.+?)(?=^\w|\Z)", attributes, re.M | re.DOTALL)
    return {name: " ".join(text.split()).replace("``", "`") for name, text in found}


def _attributes(documented: type) -> str:
    return (inspect.getdoc(documented) or "").partition("Attributes:\n")[2]


def test_the_examples_of_the_extension_are_what_the_protocol_allows() -> None:
    examples: list[dict[str, Any]] = []
    for block in blocks(EXTENSION_PAGE, "json"):
        value = json.loads(block.text)
        examples += value if isinstance(value, list) else [value]
    for block in blocks(EXTENSION_PAGE, "text"):
        examples += [
            json.loads(event.data)["result"] for event in SSEDecoder().feed(block.text.encode() + b"\n")
        ]
    models: dict[str, type[A2AModel]] = {
        "messageId": Message,
        "uri": AgentExtension,
        "conversations": ListConversationsResponse,
    }
    for example in examples:
        if "tool_calls" not in example:
            model = next((models[name] for name in models if name in example), StreamResponse)
            assert model.model_validate(example).to_dict() == example


def test_the_extension_is_declared_as_specified() -> None:
    card = build_card(Settings(), "http://127.0.0.1:8000/")
    assert card.capabilities.extensions[0].to_dict() == json.loads(blocks(EXTENSION_PAGE, "json")[0].text)
    assert EXTENSION_PAGE.read_text(encoding="utf-8").startswith(f"# The extension `{EXTENSION_URI}`\n")


def main() -> None:
    """Rewrite the tables and the schema."""
    for page, tables in ((SETTINGS_PAGE, settings_tables()), (PROVIDERS_PAGE, provider_tables())):
        anew = iter(tables)
        text = _TABLE.sub(lambda _: next(anew), page.read_text(encoding="utf-8"))  # noqa: B023 — called immediately
        page.write_text(text, encoding="utf-8")
    SCHEMA_FILE.write_text(json.dumps(config_schema(), indent=2) + "\n", encoding="utf-8")
    (ROOT / "docs/origins.md").write_text(origins_page(), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

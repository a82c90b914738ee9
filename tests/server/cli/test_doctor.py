"""``tailrace doctor``: its findings, and that it changes nothing."""

import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import anyio
import pytest

from support.agents import Scripted
from support.live_server import serving
from support.postgres import PostgresServer
from support.processes import tailrace
from support.upstream import Hang, Head, ScriptedUpstream, json_answer, openai_stream
from support.valkey import ValkeyServer
from tailrace.server import Settings, create_app
from tailrace.server.cli import doctor
from tailrace.server.cli.doctor import Finding, findings


async def found(*, ask: bool = True, **settings: Any) -> dict[str, Finding]:
    given: dict[str, Any] = {"port": 0, "store": "sqlite://", **settings}
    return {finding.name: finding async for finding in findings(Settings(**given), ask=ask)}


def asking(upstream: ScriptedUpstream) -> dict[str, Any]:
    return {"model": "openai:m", "base_url": upstream.base_url, "api_key": "topsecret", "upstream_retries": 0}


async def test_a_model_that_streams_is_well_and_its_key_is_not_shown() -> None:
    async with ScriptedUpstream(openai_stream(["one, ", "two"])) as upstream:
        seen = await found(**asking(upstream))
    assert seen["upstream"].verdict == seen["model"].verdict == seen["port"].verdict == "ok"
    assert "first chunk" in seen["upstream"].details
    assert "the key in TAILRACE_API_KEY" in seen["model"].details
    assert "topsecret" not in str(seen)


@pytest.mark.parametrize(
    ("script", "words", "advice"),
    [
        (json_answer({"error": {"message": "bad key"}}, 401), "bad key", "the key is wrong"),
        (json_answer({"error": {"message": "no such model"}}, 404), "no such model", "/v1"),
        (json_answer({"error": {"message": "busy"}}, 503), "busy", "status page"),
        ([Head(headers={"content-type": "text/html"}), b"<html>login</html>"], "", "base URL"),
        (openai_stream(["half"], finish=None), "", "base URL"),
    ],
)
async def test_a_faulty_upstream_is_reported_with_advice(script: Any, words: str, advice: str) -> None:
    async with ScriptedUpstream(script) as upstream:
        finding = (await found(**asking(upstream)))["upstream"]
    assert finding.verdict == "problem"
    assert words in finding.details
    assert advice in finding.advice


async def test_a_model_that_does_not_come_to_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_RESPONSE_SECONDS", 0.3)
    async with ScriptedUpstream([*openai_stream(["half"], finish=None), Hang()]) as upstream:
        finding = (await found(**asking(upstream)))["upstream"]
        await (await upstream.received()).client_left.wait()
    assert finding.verdict == "problem"
    assert "0.3 s" in finding.details


async def test_what_is_missing_or_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        seen = await found(port=port, host="127.0.0.1")
        assert seen["port"].verdict == "problem"
        assert str(port) in seen["port"].details
    assert seen["model"].verdict == "problem"
    assert "--model" in seen["model"].advice
    assert seen["store"].verdict == "warning"  # in memory
    seen = await found(model="nobody:x", host="0.0.0.0")
    assert "unknown provider" in seen["model"].details
    assert seen["access"].verdict == "problem"


async def test_a_store_is_looked_at_and_not_made(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "t.db"
    url = f"sqlite:///{path}"
    assert "will be created" in (await found(store=url))["store"].details
    assert not path.parent.exists()
    async with serving(create_app(Settings(store=url), handler=Scripted())):
        running = (await found(store=url))["store"]
    assert running.verdict in ("ok", "warning")
    before = path.read_bytes()
    assert "0 tasks" in (await found(store=url))["store"].details
    assert path.read_bytes() == before
    path.write_bytes(b"no database at all, but long enough to be looked at " * 40)
    assert (await found(store=url))["store"].verdict == "problem"


async def test_postgresql_is_checked(postgres: PostgresServer) -> None:
    url = await postgres.empty_database()
    assert (await found(store=url))["store"].details.startswith("PostgreSQL ")
    gone = (await found(store="postgresql://u:topsecret@127.0.0.1:1/d"))["store"]
    assert gone.verdict == "problem"
    assert "topsecret" not in str(gone)


async def test_the_broker_is_checked(valkey: ValkeyServer) -> None:
    assert (await found(events=valkey.url()))["broker"].verdict == "ok"
    assert (await found(events="redis://:topsecret@127.0.0.1:1/0"))["broker"].verdict == "problem"
    assert "topsecret" not in str(await found(events="redis://:topsecret@127.0.0.1:1/0"))


@pytest.mark.parametrize(
    ("setting", "bad", "good"),
    [
        ("appendonly", "no", "yes"),
        ("appendfsync", "everysec", "always"),
        ("maxmemory-policy", "allkeys-lru", "noeviction"),
    ],
)
async def test_a_broker_that_may_lose_what_was_shown_is_no_good(
    setting: str, bad: str, good: str, valkey: ValkeyServer
) -> None:
    valkey.command("CONFIG", "SET", setting, bad)
    try:
        broker = (await found(events=valkey.url()))["broker"]
    finally:
        valkey.command("CONFIG", "SET", setting, good)
    assert broker.verdict == "warning"
    assert f"{setting} is {bad}" in broker.details
    assert broker.advice == f"set it to {good}"


async def test_the_card_of_a_remote_agent_is_checked() -> None:
    async with serving(create_app(Settings(store="sqlite://"), handler=Scripted())) as url:
        assert (await found(agent=url))["agent"].verdict == "ok"
    assert (await found(agent=url))["agent"].verdict == "problem"


async def test_the_program_prints_lines_and_sets_its_exit_status(tmp_path: Path) -> None:
    async with ScriptedUpstream(openai_stream(["one"])) as upstream:
        options = ["--model", "openai:m", "--base-url", upstream.base_url, "--port", "0", "--json"]

        def run(*arguments: str) -> subprocess.CompletedProcess[str]:
            environment = {**os.environ, "TAILRACE_API_KEY": "topsecret"}
            return subprocess.run(
                tailrace("doctor", *arguments),
                capture_output=True,
                text=True,
                cwd=tmp_path,
                env=environment,
                check=False,
            )

        well = await anyio.to_thread.run_sync(run, *options)
        ill = await anyio.to_thread.run_sync(run, "--model", "nobody:x", "--port", "0")
    lines = [json.loads(line) for line in well.stdout.splitlines()]
    assert well.returncode == 0, well
    assert {line["name"] for line in lines} >= {"versions", "access", "store", "port", "model", "upstream"}
    assert ill.returncode == 1
    assert "FAIL model: unknown provider 'nobody'" in ill.stdout
    assert "→" in ill.stdout
    assert not os.listdir(tmp_path)

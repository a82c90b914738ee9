"""Secrets in the database: the installation's secret is created once, webhook credentials are encrypted."""

import logging
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

import anyio
import msgspec
import pytest
from pydantic import SecretStr

from support.live_server import serving
from support.nodes import Nodes
from support.postgres import PostgresServer
from support.rpc import Rpc, message
from support.store_objects import write
from support.valkey import ValkeyServer
from support.webhook_receiver import receiving
from tailrace.server import Settings, create_app
from tailrace.server.cluster.node import Node, NodeDatabase
from tailrace.server.runtime.handlers import FunctionHandler, Turn
from tailrace.server.store.database import parse_url
from tailrace.server.store.secret_keys import SecretKeys
from tailrace.server.store.secret_rows import installation_secret
from tailrace.server.store.store import PushConfig, Store
from tailrace.streaming import StatusUpdate, TaskState, Update
from tailrace.streaming.a2a.models import Message
from tailrace.streaming.a2a.requests import AuthenticationInfo, TaskPushNotificationConfig

SECRET, NEW_SECRET = "first-secret-of-an-installation", "second-secret-of-an-installation"
TOKEN, CREDENTIALS = "token-that-is-secret", "credentials-that-are-secret"


def webhook(config_id: str = "w", url: str = "https://example.com/hook") -> PushConfig:
    config = TaskPushNotificationConfig(
        id=config_id,
        task_id="t",
        url=url,
        token=TOKEN,
        authentication=AuthenticationInfo(scheme="Bearer", credentials=CREDENTIALS),
    )
    return PushConfig("me", "1.0", config)


class OpenStore:
    """A store on a database with an installation's keys."""

    def __init__(self, url: str, secret: str = "") -> None:
        self.keys = SecretKeys(secret)
        self.store = Store(url)
        self.store.use_keys(self.keys)

    async def __aenter__(self) -> Self:
        await self.store.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.store.close()

    async def webhooks(self) -> list[PushConfig]:
        return await self.store.load_push_configs("t", "me")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/tasks.db"


def rows(url: str, statement: str) -> list[tuple[Any, ...]]:
    """Return the rows of the file, read without the store."""
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    with connection:
        found = connection.execute(statement).fetchall()
    connection.close()
    return found


def everything(url: str) -> bytes:
    path = Path(url.removeprefix("sqlite:///"))
    return b"".join(each.read_bytes() for each in sorted(path.parent.iterdir()) if each.is_file())


# --- the secret of the installation -------------------------------------------------------------------------------


async def test_the_secret_is_created_once_and_stays(url: str) -> None:
    ids: list[str] = []
    for _ in range(2):
        async with OpenStore(url) as session:
            ids.append(session.keys.external_id("ann", "context"))
    async with OpenStore("sqlite://") as other:
        ids.append(other.keys.external_id("ann", "context"))
    assert ids[0] == ids[1] != ids[2]
    [(secret,)] = rows(url, "SELECT value FROM secrets")
    assert len(secret) == 32


async def test_a_configured_secret_is_not_stored(url: str) -> None:
    async with OpenStore(url, SECRET) as session:
        assert session.keys.external_id("ann", "c") == SecretKeys(SECRET).external_id("ann", "c")
    assert rows(url, "SELECT count(*) FROM secrets") == [(0,)]
    assert SECRET.encode() not in everything(url)


async def test_servers_that_start_at_the_same_time_have_the_same_secret(
    postgres: PostgresServer, valkey: ValkeyServer
) -> None:
    nodes = await Nodes.empty(postgres, valkey)
    found: list[bytes] = []
    databases = [NodeDatabase(parse_url(nodes.store), Node(10.0)) for _ in range(6)]

    async def ask(database: NodeDatabase) -> None:
        await database.open()
        found.append(await database.write(installation_secret))

    async with anyio.create_task_group() as group:
        for database in databases:
            group.start_soon(ask, database)
    for database in databases:
        await database.close()
    assert len(found) == 6
    assert len(set(found)) == 1


# --- credentials of webhooks --------------------------------------------------------------------------------------


async def test_credentials_are_encrypted_with_a_configured_key(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with OpenStore(url, SECRET) as session:
        await session.store.put_push_config(webhook("w", "https://example.com/hook?key=also-secret"))
        assert await session.webhooks() == [webhook("w", "https://example.com/hook?key=also-secret")]
    content = everything(url)
    for secret in (TOKEN, CREDENTIALS, "also-secret"):
        assert secret.encode() not in content
    async with OpenStore(url, SECRET) as session:
        assert [each.config.token for each in await session.webhooks()] == [TOKEN]
    assert "TAILRACE_SECRET_KEY" not in caplog.text


async def test_webhooks_that_come_with_a_message_are_encrypted(url: str) -> None:
    async with OpenStore(url, SECRET) as session:
        begun = write("t", 1, state=TaskState.WORKING)
        await session.store.commit([msgspec.structs.replace(begun, webhooks=(webhook(),))])
        assert [each.config.token for each in await session.webhooks()] == [TOKEN]
        assert [each.config.token for each, _ in await session.store.load_open_push_configs()] == [TOKEN]
    assert TOKEN.encode() not in everything(url)


async def test_without_a_key_there_is_one_warning_that_names_the_setting(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with OpenStore(url) as session:
        plain = webhook("plain").config.model_copy(update={"token": "", "authentication": None})
        await session.store.put_push_config(PushConfig("me", "1.0", plain))
        assert "unencrypted" not in caplog.text
        for name in ("v", "w"):
            await session.store.put_push_config(webhook(name))
        await session.store.commit([write("t", 1, state=TaskState.WORKING)])
    async with OpenStore(url) as session:  # also after a restart
        for _ in range(2):
            await session.store.load_open_push_configs()
    lines = [record.getMessage() for record in caplog.records if "unencrypted" in record.getMessage()]
    assert len(lines) == 2
    assert all("set it to encrypt" in line and "TAILRACE_SECRET_KEY" in line for line in lines)
    assert TOKEN not in caplog.text


async def test_rows_of_before_there_was_a_key_are_read_and_encrypted_when_they_are_replaced(url: str) -> None:
    async with OpenStore(url) as session:
        await session.store.put_push_config(webhook())
    assert TOKEN in rows(url, "SELECT body FROM push_configs")[0][0].decode()
    async with OpenStore(url, SECRET) as session:
        assert await session.webhooks() == [webhook()]
        await session.store.put_push_config(webhook())
        assert await session.webhooks() == [webhook()]
    assert TOKEN.encode() not in rows(url, "SELECT body FROM push_configs")[0][0]


async def test_a_key_is_replaced_while_the_one_before_is_still_accepted(url: str) -> None:
    async with OpenStore(url, SECRET) as session:
        await session.store.put_push_config(webhook("old"))
    async with OpenStore(url, f"{NEW_SECRET},{SECRET}") as session:
        await session.store.put_push_config(webhook("new"))
        assert [each.config.id for each in await session.webhooks()] == ["new", "old"]
    async with OpenStore(url, NEW_SECRET) as session:
        assert [each.config.id for each in await session.webhooks()] == ["new"]


@pytest.mark.parametrize("secret", ["", NEW_SECRET], ids=["without a key", "with another key"])
async def test_a_row_that_cannot_be_decrypted_is_an_error_in_the_log_and_nothing_else(
    url: str, secret: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with OpenStore(url, SECRET) as session:
        await session.store.commit([write("t", 1, state=TaskState.WORKING)])
        await session.store.put_push_config(webhook("w\r\nforged"))
    async with OpenStore(url, secret) as session:
        for _ in range(3):
            assert await session.webhooks() == []
            assert await session.store.load_open_push_configs() == []
        await session.store.put_push_config(webhook("other"))
        assert [each.config.id for each in await session.webhooks()] == ["other"]
        await session.store.delete_push_config("t", "w\r\nforged")
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "TAILRACE_SECRET_KEY" in errors[0]
    assert errors[0].isprintable()


@pytest.mark.parametrize("column", ["owner", "id", "task_id"])
async def test_a_row_with_a_changed_owner_or_id_cannot_be_decrypted(url: str, column: str) -> None:
    async with OpenStore(url, SECRET) as session:
        await session.store.put_push_config(webhook())
        await session.store.put_push_config(webhook("kept"))
    rows(url, f"UPDATE push_configs SET {column} = 'x' WHERE id = 'w'")
    ids = {"task_id": "t", "owner": "me", "id": "w", column: "x"}
    async with OpenStore(url, SECRET) as session:
        found = await session.store.load_push_configs(ids["task_id"], ids["owner"])
        assert [each.config.id for each in found if each.config.id != "kept"] == []
        assert [each.config.id for each in await session.webhooks()] == ["kept"]


async def test_webhooks_with_encrypted_credentials_are_notified_and_never_logged(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(turn: Turn) -> AsyncIterator[Update | Message]:
        yield StatusUpdate(TaskState.COMPLETED)

    caplog.set_level(logging.DEBUG, "tailrace")
    settings = Settings(
        store=url,
        secret_key=SecretStr(SECRET),
        push_notifications="private",
        caller_keys=SecretStr("ann:k1,bob:k2"),
    )
    ann, bob = ({"X-API-Key": key} for key in ("k1", "k2"))
    async with receiving() as receiver:
        async with (
            serving(create_app(settings, handler=FunctionHandler(handle))) as server,
            Rpc(server) as rpc,
        ):
            config = {
                "url": receiver.url,
                "token": TOKEN,
                "authentication": {"scheme": "Bearer", "credentials": CREDENTIALS},
            }
            params = {**message(), "configuration": {"taskPushNotificationConfig": config}}
            task = (await rpc.call("SendMessage", params, ann))["result"]["task"]
            delivery = (await receiver.until_end())[-1]
            assert delivery.headers["Authorization"] == f"Bearer {CREDENTIALS}"
            assert delivery.headers["X-A2A-Notification-Token"] == TOKEN
            query = {"taskId": task["id"]}
            own = await rpc.call("ListTaskPushNotificationConfigs", query, ann)
            assert own["result"]["configs"][0]["token"] == TOKEN
            others = [
                await rpc.call("ListTaskPushNotificationConfigs", query, bob),
                await rpc.call("GetTask", {"id": task["id"]}, bob),
                await rpc.call("GetTask", {"id": task["id"]}, ann),
            ]
    for text in (str(others), caplog.text, everything(url).decode("latin-1")):
        assert TOKEN not in text
        assert CREDENTIALS not in text

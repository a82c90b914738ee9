"""Webhooks as rows of their table."""

from typing import Any

from sqlalchemy import Connection, insert, select, update

from tailrace.server.stores.records import PushConfig
from tailrace.server.stores.schema import push_configs, tasks
from tailrace.streaming.a2a.requests import TaskPushNotificationConfig
from tailrace.streaming.lifecycle import TaskState


def put_push_config(connection: Connection, webhook: PushConfig, node: str | None = None) -> None:
    """Write a webhook, in the place of the one of the same ids; ``node`` is the one of several servers that tells it."""
    task_id, config_id = webhook.key
    values = {"dialect": webhook.dialect, "body": webhook.config.to_json(), "node": node}
    where = (push_configs.c.task_id == task_id, push_configs.c.id == config_id)
    # What a replaced webhook was told of, its successor need not be told again.
    changed = connection.execute(update(push_configs).where(*where).values(values))
    if not changed.rowcount:
        key = {"task_id": task_id, "id": config_id, "owner": webhook.owner, "delivered": webhook.delivered}
        connection.execute(insert(push_configs).values({**key, **values}))


def open_push_configs() -> Any:
    """A query for the webhooks that have or may yet have something to be told of, and whether they have for certain."""
    over = tasks.c.state.in_([state for state in TaskState if state.terminal])
    behind = push_configs.c.delivered < tasks.c.number
    return (
        select(push_configs, behind.label("behind"))
        .join(tasks, tasks.c.id == push_configs.c.task_id)
        .where(~over | behind)
    )


def read_push_config(row: Any) -> PushConfig:
    """A webhook of a row of its table."""
    config = TaskPushNotificationConfig.model_validate_json(row.body)
    return PushConfig(row.owner, row.dialect, config, row.delivered)

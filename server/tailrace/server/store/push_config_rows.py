"""Reads and writes rows of webhooks."""

import logging
from typing import Any

from sqlalchemy import Connection, insert, select, update

from tailrace.server.store.encryption import DecryptionError, Encryption
from tailrace.server.store.records import PushConfig
from tailrace.server.store.schema import push_configs, tasks
from tailrace.server.store.secret_keys import SecretKeys
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.requests import TaskPushNotificationConfig

logger = logging.getLogger("tailrace.server")

_MAX_LOGGED = 1000  # maximum number of webhooks that are logged because they cannot be decrypted


class PushConfigRows:
    """Reads and writes rows of webhooks.

    New rows are encrypted if a key is configured. Rows that were written without a key can still be read.
    """

    def __init__(self, keys: SecretKeys) -> None:
        self._encryption = Encryption(keys, "webhook credentials")
        self._has_warned = False
        self._logged: set[tuple[str, str]] = set()

    def load(self) -> None:
        """Import the cryptography library if it is needed. This takes too long for the event loop."""
        self._encryption.load()

    def put(self, connection: Connection, webhook: PushConfig, node: str | None = None) -> None:
        """Insert a webhook, or update the webhook with the same ids. ``node`` is the node that delivers its notifications."""
        task_id, config_id = webhook.key
        body = webhook.config.to_json()
        if self._encryption.is_available:
            body = self._encryption.encrypt(body, webhook.owner, task_id, config_id)
        else:
            self._warn_of_credentials(webhook.config)
        values = {"dialect": webhook.dialect, "body": body, "node": node}
        conditions = (push_configs.c.task_id == task_id, push_configs.c.id == config_id)
        # The update keeps ``delivered``, so that delivered events are not delivered again.
        changed = connection.execute(update(push_configs).where(*conditions).values(values))
        if not changed.rowcount:
            key = {
                "task_id": task_id,
                "id": config_id,
                "owner": webhook.owner,
                "delivered": webhook.last_delivered,
            }
            connection.execute(insert(push_configs).values({**key, **values}))

    def read(self, row: Any) -> PushConfig | None:
        """Return the webhook of a row. If it cannot be decrypted, log an error, and return None."""
        body = row.body
        if self._encryption.is_encrypted(body):
            try:
                body = self._encryption.decrypt(body, row.owner, row.task_id, row.id)
            except DecryptionError as error:
                self._log(row, error)
                return None
        config = TaskPushNotificationConfig.model_validate_json(body)
        if not self._encryption.is_available:
            self._warn_of_credentials(config)
        return PushConfig(row.owner, row.dialect, config, row.delivered)

    def read_all(self, rows: Any) -> list[PushConfig]:
        """Return the webhooks of rows, without webhooks that cannot be decrypted."""
        return [webhook for row in rows if (webhook := self.read(row)) is not None]

    def read_open(self, rows: Any) -> list[tuple[PushConfig, bool]]:
        """Return the webhooks of rows of `open_push_configs`, without webhooks that cannot be decrypted."""
        return [(webhook, bool(row.is_lagging)) for row in rows if (webhook := self.read(row)) is not None]

    def _warn_of_credentials(self, config: TaskPushNotificationConfig) -> None:
        authentication = config.authentication
        if self._has_warned or not (config.token or (authentication and authentication.credentials)):
            return
        self._has_warned = True
        logger.warning(
            "credentials of webhooks are stored unencrypted, because TAILRACE_SECRET_KEY is not set; set it to encrypt "
            "those that are stored from then on (create one with: openssl rand -hex 32)"
        )

    def _log(self, row: Any, error: DecryptionError) -> None:
        key = (row.task_id, row.id)
        if key in self._logged or len(self._logged) >= _MAX_LOGGED:
            return
        self._logged.add(key)
        logger.error(
            "webhook %s of task %s is not called: %s; add the secret that it was stored with to TAILRACE_SECRET_KEY, "
            "or set the webhook again",
            ascii(row.id),
            ascii(row.task_id),
            error,
        )


def open_push_configs() -> Any:
    """Return a query for webhooks that may have notifications to deliver; ``is_lagging`` is true if events are undelivered."""
    has_ended = tasks.c.state.in_([state for state in TaskState if state.terminal])
    is_lagging = push_configs.c.delivered < tasks.c.number
    return (
        select(push_configs, is_lagging.label("is_lagging"))
        .join(tasks, tasks.c.id == push_configs.c.task_id)
        .where(~has_ended | is_lagging)
    )

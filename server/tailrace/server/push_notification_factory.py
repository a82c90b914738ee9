"""Creates, from the settings, the notifier that delivers push notifications."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tailrace.server.protocols.openai.webhook_events import FORMAT_NAME, ResponseNotifications
from tailrace.server.runtime.observer import NO_OBSERVER, Observer
from tailrace.server.runtime.webhooks.addresses import WebhookGuard
from tailrace.server.runtime.webhooks.client import WebhookClient
from tailrace.server.runtime.webhooks.delivery import PushNotifier
from tailrace.server.runtime.webhooks.operator_form import OperatorForm
from tailrace.server.runtime.webhooks.signatures import TokenSignature
from tailrace.server.settings import Settings
from tailrace.server.store.store import Store
from tailrace.streaming.a2a.errors import InvalidParamsError
from tailrace.wrappers import ConfigurationError

if TYPE_CHECKING:
    from tailrace.server.protocols.a2a.card_signing import CardSigner  # imports the cryptography library


def create_notifier(
    settings: Settings,
    store: Store,
    observer: Observer = NO_OBSERVER,
    signers: "Sequence[CardSigner]" = (),
) -> PushNotifier | None:
    """Create the notifier that delivers push notifications; None if push notifications are disabled.

    Raises:
        ConfigurationError: The address of the operator's webhook is not allowed, or push notifications are disabled.
    """
    if not settings.push_notifications:
        if settings.openai_webhook is not None:
            raise ConfigurationError(
                "TAILRACE_OPENAI_WEBHOOK requires TAILRACE_PUSH_NOTIFICATIONS=true or private"
            )
        return None
    guard = WebhookGuard(allow_private=settings.push_notifications == "private")
    forms: dict[str, OperatorForm] = {}
    if settings.openai_webhook is not None:
        try:
            guard.check_url(settings.openai_webhook.url)
        except InvalidParamsError as error:
            raise ConfigurationError(f"TAILRACE_OPENAI_WEBHOOK: {error}") from None
        forms[FORMAT_NAME] = ResponseNotifications(settings.openai_webhook)
    client = WebhookClient(
        guard,
        timeout=settings.bounds.push_timeout,
        attempts=settings.bounds.push_attempts,
        observer=observer,
    )
    sign = TokenSignature(signers[0].token, settings.public_url or "") if signers else None
    return PushNotifier(store, client, sign=sign, forms=forms)

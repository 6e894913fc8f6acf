"""Telling people that they are asked: by a command, or by a signed webhook.

    from everhold.notify import ByCommand, ByWebhook

    everhold.open(tell=[ByCommand("notify-send everhold"), ByWebhook("https://…", secret="whsec_…")])

`verify` is for whoever receives a webhook.
"""  # noqa: E501

from everhold.notify.command import ByCommand
from everhold.notify.notifications import Notifications, load_notifiers
from everhold.notify.outbox import NotificationFailed, Notifier, OutboxEntry, OutboxState
from everhold.notify.signature import new_secret, sign, verify
from everhold.notify.webhook import ByWebhook

__all__ = [
    "ByCommand",
    "ByWebhook",
    "NotificationFailed",
    "Notifications",
    "Notifier",
    "OutboxEntry",
    "OutboxState",
    "load_notifiers",
    "new_secret",
    "sign",
    "verify",
]

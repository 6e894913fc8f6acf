"""Notifications: a command or a signed webhook notifies people of open questions.

    from everhold.notify import ByCommand, ByWebhook

    everhold.open(tell=[ByCommand("notify-send everhold"), ByWebhook("https://…", secret="whsec_…")])

The receiver of a webhook calls `verify`. `new_secret` makes the shared secret.
"""  # noqa: E501

from everhold.notify.command import ByCommand
from everhold.notify.notifications import Notifications
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
    "new_secret",
    "sign",
    "verify",
]

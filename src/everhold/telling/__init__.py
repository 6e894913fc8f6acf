"""Telling people that they are asked: by a command, or by a signed webhook.

    from everhold.telling import ByCommand, ByWebhook

    everhold.open(tell=[ByCommand("notify-send everhold"), ByWebhook("https://…", secret="whsec_…")])

`verify` is for whoever receives a webhook.
"""

from everhold.drive.outbox import Entry, EntryState, NotTold, Teller
from everhold.telling.command import ByCommand
from everhold.telling.house import Telling, configured
from everhold.telling.signature import new_secret, sign, verify
from everhold.telling.webhook import ByWebhook

__all__ = [
    "ByCommand",
    "ByWebhook",
    "Entry",
    "EntryState",
    "NotTold",
    "Teller",
    "Telling",
    "configured",
    "new_secret",
    "sign",
    "verify",
]

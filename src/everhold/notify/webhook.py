"""Notifies by a webhook: a signed POST with the question as JSON. A 2xx response means delivered.

Redirects are not followed, and proxies are not used. Errors and logs never contain the address or
the secret: an address may itself be a secret. The whole exchange has `timeout` seconds.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final
from urllib.parse import SplitResult, quote, urlsplit

from everhold.errors import BadSetting
from everhold.notify.filter import TIMEOUT, NotifierBase, make_notifier_name
from everhold.notify.outbox import NotificationFailed
from everhold.notify.signature import build_headers, decode_secret

#: Maximum bytes of the response's head. The body is not read.
READ_LIMIT_BYTES: Final = 65536
_GONE: Final = 410


class ByWebhook(NotifierBase):
    """Notifies by a webhook: a signed POST of JSON."""

    def __init__(
        self,
        url: str,
        *,
        secret: str | Sequence[str] = (),
        name: str | None = None,
        kinds: Iterable[str] = (),
        to: Iterable[str] = (),
        timeout: float = TIMEOUT,
        max_age: float | None = None,
    ) -> None:
        parts = _address(url)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = parts.scheme == "https"
        path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._")
        query = quote(parts.query, safe="/?%:@!$&'()*+,;=~-._")
        self._target = f"{path}?{query}" if query else path
        self._shown_host = (
            parts.netloc.encode("idna").decode() if not parts.netloc.isascii() else parts.netloc
        )
        self._secrets = (secret,) if isinstance(secret, str) else tuple(secret)
        for one in self._secrets:
            decode_secret(one)
        super().__init__(
            make_notifier_name(self._host, url) if name is None else name,
            kinds,
            to,
            timeout,
            max_age,
        )

    async def tell(self, id: str, message: bytes, now: float) -> None:
        try:
            status, after = await self._post(id, message, int(now))
        except TimeoutError:
            raise
        except ssl.SSLError as error:
            raise NotificationFailed(
                f"TLS failed: {error.reason or type(error).__name__}"
            ) from None
        except OSError as error:
            reason = (
                os.strerror(error.errno)
                if error.errno and error.errno > 0
                else type(error).__name__
            )
            raise NotificationFailed(f"the webhook is unreachable: {reason}") from None
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            raise NotificationFailed("the response is not HTTP") from None
        if not 200 <= status < 300:
            more = "; redirects are not followed" if 300 <= status < 400 else ""
            raise NotificationFailed(
                f"the response was {status}{more}", final=status == _GONE, after=after
            )

    async def _post(self, id: str, message: bytes, now: int) -> tuple[int, float]:
        """The status of the response, and its Retry-After in seconds."""
        context = await asyncio.to_thread(_load_tls_context) if self._tls else None
        reader, writer = await asyncio.open_connection(
            self._host, self._port, ssl=context, limit=READ_LIMIT_BYTES
        )
        try:
            headers = {
                "Host": self._shown_host,
                "Content-Type": "application/json",
                "Content-Length": str(len(message)),
                "User-Agent": "everhold",
                "Connection": "close",
                **build_headers(self._secrets, id, now, message),
            }
            lines = [
                f"POST {self._target} HTTP/1.1",
                *(f"{name}: {value}" for name, value in headers.items()),
            ]
            writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("ascii") + message)
            await writer.drain()
            while True:
                status, after = _read(await reader.readuntil(b"\r\n\r\n"))
                if status >= 200:
                    return status, after
        finally:
            writer.transport.abort()  # a graceful close could wait for the server


def _address(url: str) -> SplitResult:
    """The parts of an address; raises `BadSetting`, which does not contain the address."""
    is_wrong = any(character.isspace() or ord(character) < 32 for character in url)
    try:
        parts = urlsplit(url)
        is_wrong = (
            is_wrong
            or parts.scheme not in ("http", "https")
            or not parts.hostname
            or parts.port == 0
        )
        parts.netloc.encode("idna")
    except (ValueError, UnicodeError):
        is_wrong = True
    if is_wrong:
        raise BadSetting("url", "it should be an http:// or https:// address")
    if parts.username is not None or parts.password is not None:
        raise BadSetting(
            "url", "it should not contain a user or a password; use secret= to sign messages"
        )
    return parts


def _read(head: bytes) -> tuple[int, float]:
    """Status and Retry-After of an answer; raises `ValueError` for what is not HTTP."""
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
        raise ValueError(first)
    pairs = (line.partition(":") for line in lines)
    after = next((value.strip() for name, _, value in pairs if name.lower() == "retry-after"), "")
    return int(rest[:3]), float(after) if after.isascii() and after.isdigit() else 0.0


@lru_cache(maxsize=1)
def _load_tls_context() -> ssl.SSLContext:
    """A context with the certificates of this machine. Loading them blocks for a while."""
    return ssl.create_default_context()

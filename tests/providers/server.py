"""A server that speaks as providers of models do, on a free port of this machine, and says what a
test has scripted.

    with Server() as server:
        server.script(Reply("Paris."), Fail(429, retry_after=2), Cut(Reply("…"), after=2))
        model = Model(server.name("anthropic"))

Requests are kept in `server.requests`. A script that is used up answers with 418, which no provider
does.
"""

import json
import threading
from collections import deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from tests.providers import wire
from tests.providers.wire import Reply

#: Ways to speak, and the names under which each is asked here.
WAYS = ("openai-chat", "openai-responses", "anthropic", "google")


@dataclass
class Fail:
    """An error instead of an answer."""

    status: int
    message: str = "something is wrong"
    retry_after: float | None = None
    code: str = ""


@dataclass
class Cut:
    """A stream that ends in the middle: after so many events, as if all were well, or by a broken
    connection.
    """

    reply: Reply
    after: int
    broken: bool = False


@dataclass
class Stall:
    """A stream that falls silent after so many events; without any, even the answer's head does not
    come.
    """

    reply: Reply
    after: int = 0


@dataclass
class Raw:
    """Whatever is written here, as the body of a 200."""

    body: bytes
    kind: str = "text/event-stream"


Step = Reply | Fail | Cut | Stall | Raw


@dataclass
class Request:
    way: str
    path: str
    headers: dict[str, str]
    body: Any
    streams: bool
    raw: bytes = b""


@dataclass
class Server:
    steps: deque[Step] = field(default_factory=deque)
    requests: list[Request] = field(default_factory=list)
    # a client went away in the middle
    left: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def name(self, way: str, model: str = "tester") -> str:
        """How `llm=` names a model of this server that is spoken to in this way."""
        return f"{way}:{model}@{self.url}" + ("/v1" if way.startswith("openai") else "")

    def script(self, *steps: Step) -> None:
        """What is said next, request by request."""
        self.steps.extend(steps)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["content-length"]))
                body = json.loads(raw)
                way = _way(self.path)
                streams = "streamGenerateContent" in self.path or bool(body.get("stream"))
                headers = {name.lower(): value for name, value in self.headers.items()}
                server.requests.append(Request(way, self.path, headers, body, streams, raw))
                step = (
                    server.steps.popleft() if server.steps else Fail(418, "the script is used up")
                )
                try:
                    self._say(step, way, streams)
                except (BrokenPipeError, ConnectionResetError):
                    server.left.set()

            def _say(self, step: Step, way: str, streams: bool) -> None:
                match step:
                    case Fail():
                        self._whole(
                            step.status,
                            wire.error_body(way, step.status, step.message, step.code),
                            step,
                        )
                    case Raw(body=body, kind=kind):
                        self._head(200, kind, len(body))
                        self.wfile.write(body)
                    case Reply() if not streams:
                        self._whole(200, _WHOLE[way](step))
                    case Reply():
                        self._events(_EVENTS[way](step))
                    case Cut(reply=reply, after=after, broken=broken):
                        self._events(_EVENTS[way](reply)[:after], end=not broken)
                        self.close_connection = True
                    case Stall(reply=reply, after=after):
                        if after:
                            self._events(_EVENTS[way](reply)[:after], end=False)
                        self._wait()

            def _wait(self) -> None:
                """Be silent until the client has gone, or the test is over."""
                self.connection.settimeout(0.05)
                while not server.released.is_set():
                    try:
                        if not self.connection.recv(1):
                            server.left.set()
                            break
                    except TimeoutError:
                        continue
                self.close_connection = True

            def _head(
                self,
                status: int,
                kind: str,
                length: int | None = None,
                retry_after: float | None = None,
            ) -> None:
                self.send_response(status)
                self.send_header("content-type", kind)
                if retry_after is not None:
                    self.send_header("retry-after", f"{retry_after:g}")
                if length is None:
                    self.send_header("transfer-encoding", "chunked")
                else:
                    self.send_header("content-length", str(length))
                self.end_headers()

            def _whole(self, status: int, value: Any, step: Fail | None = None) -> None:
                body = json.dumps(value).encode()
                self._head(
                    status, "application/json", len(body), step.retry_after if step else None
                )
                self.wfile.write(body)

            def _events(self, events: list[bytes], end: bool = True) -> None:
                self._head(200, "text/event-stream")
                for event in events:
                    self.wfile.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
                    self.wfile.flush()
                if end:
                    self.wfile.write(b"0\r\n\r\n")

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        return Handler


def _way(path: str) -> str:
    if path.endswith("/chat/completions"):
        return "openai-chat"
    if path.endswith("/responses"):
        return "openai-responses"
    if path.partition("?")[0].endswith("/messages"):
        return "anthropic"
    assert "generateContent" in path.replace("stream", "").replace("Generate", "generate"), path
    return "google"


_WHOLE = {
    "openai-chat": wire.chat_whole,
    "openai-responses": wire.responses_whole,
    "anthropic": wire.anthropic_whole,
    "google": wire.google_whole,
}
_EVENTS = {
    "openai-chat": wire.chat_events,
    "openai-responses": wire.responses_events,
    "anthropic": wire.anthropic_events,
    "google": wire.google_events,
}

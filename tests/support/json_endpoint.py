"""HTTP endpoints on a port of their own, for tests of clients: a subclass of the handler says what they answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class JsonEndpoint(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, handler: type[JsonHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing where a client leaves before its answer."""

    @contextmanager
    def started(self) -> Iterator[Self]:
        with self:
            threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
            try:
                yield self
            finally:
                self.shutdown()


class JsonHandler(BaseHTTPRequestHandler):
    def body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def answer(self, status: int, value: Any) -> None:
        self._answer(status, json.dumps(value).encode(), "application/json")

    def answer_text(self, text: str) -> None:
        self._answer(200, text.encode(), "text/plain")

    def _answer(self, status: int, data: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None: ...


def completion(text: str, prompt_tokens: int, tokens: int, **usage: Any) -> dict[str, Any]:
    """A reply of chat completions. usage: further fields of it."""
    counts = {"prompt_tokens": prompt_tokens, "completion_tokens": tokens, "total_tokens": prompt_tokens + tokens}
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return {"choices": [choice], "usage": counts | usage}


class ChatEndpoint(JsonEndpoint):
    """An endpoint of chat completions. reply: returns status and answer for a request's body.

    bodies: of the requests that came, in their order.
    """

    def __init__(self, reply: Callable[[Any], tuple[int, Any]], models: Sequence[str] = ("m",)) -> None:
        super().__init__(ChatHandler)
        self.reply = reply
        self.models = models
        self.bodies: list[Any] = []


class ChatHandler(JsonHandler):
    server: ChatEndpoint

    def do_GET(self) -> None:
        data = [{"id": name, "object": "model", "owned_by": "somebody"} for name in self.server.models]
        self.answer(200, {"object": "list", "data": data})

    def do_POST(self) -> None:
        body = self.body()
        self.server.bodies.append(body)
        self.answer(*self.server.reply(body))

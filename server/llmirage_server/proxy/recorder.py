"""Recording: what passes between a client and an upstream becomes files, without holding it up."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from llmirage_server.http.relay import Ending, ForwardedRequest
from llmirage_server.replies.recordings.foreign import KEPT_HEADERS, redacted
from llmirage_server.replies.recordings.matching import endpoint_of
from llmirage_server.replies.recordings.recording import Chunk, Recording
from llmirage_server.replies.recordings.redaction import Redactor, secrets_of
from llmirage_server.replies.recordings.sse import EventSplitter
from llmirage_server.replies.recordings.store import RecordingWriter
from llmirage_shared.virtual_time import precise_clock

logger = logging.getLogger("llmirage")

_ENDINGS: Mapping[Ending, str | None] = {
    "complete": None,
    "cut": "the upstream broke off",
    "client_left": "the client left",
    "stopped": "the recording was stopped",
}


class ExchangeRecorder:
    """Writes exchanges to a folder, one after the other, in a thread of its own."""

    def __init__(
        self, writer: RecordingWriter, secrets: Sequence[str] = (), written: Callable[[Recording], None] = lambda _: None
    ) -> None:
        """secrets: keys that no file may have, beside those of requests. written: called in that thread for each file."""
        self._writer = writer
        self._secrets = tuple(secrets)
        self._written = written
        self._thread = ThreadPoolExecutor(1, "recorder")

    def tap(self, request: ForwardedRequest) -> RecordingTap | None:
        """Return the recorder of the response to this request; None for one that is not recorded."""
        if request.method != "POST" or endpoint_of(request.target) is None:
            return None
        try:
            body = json.loads(request.body)
        except (ValueError, RecursionError):
            return None
        return RecordingTap(request, body, self._save) if isinstance(body, dict) else None

    def redactor(self, request: ForwardedRequest) -> Redactor:
        return redactor_of(request, self._secrets)

    def close(self) -> None:
        """Wait until all files are written."""
        self._thread.shutdown()

    def _save(self, request: ForwardedRequest, recording: Recording) -> None:
        self._thread.submit(self._write, request, recording)

    def _write(self, request: ForwardedRequest, raw: Recording) -> None:
        try:
            recording = redacted(raw, self.redactor(request))
            self._writer.write(recording)
            self._written(recording)
        except OSError as error:
            logger.error("A recording could not be written to %s: %s", self._writer.folder, error.strerror or error)
        except RecursionError:
            logger.error("An exchange was not recorded: its JSON is nested too deep")
        except Exception:
            logger.exception("An exchange could not be recorded; please report this")


class RecordingTap:
    """Collects the response to one request."""

    def __init__(self, request: ForwardedRequest, body: Any, save: Callable[[ForwardedRequest, Recording], None]) -> None:
        self._clock = precise_clock()
        self._start_s = self._clock()
        self._request = request
        self._save = save
        self._recording = Recording(request.method, request.target, body, 0, {}, [])
        self._splitter: EventSplitter | None = None
        self._parts: list[bytes] = []
        self._encoding = ""

    def started(self, status: int, headers: Mapping[str, str]) -> None:
        recording = self._recording
        recording.status = status
        recording.headers = {name: headers[name] for name in KEPT_HEADERS if name in headers}
        recording.stream = headers.get("content-type", "").startswith("text/event-stream")
        self._splitter = EventSplitter() if recording.stream else None
        self._encoding = headers.get("content-encoding", "")

    def received(self, data: bytes) -> None:
        if self._splitter is None:
            self._parts.append(data)
            return
        if events := self._splitter.feed(data):
            at_ms = self._at_ms()
            self._recording.chunks += [Chunk(at_ms, event) for event in events]

    def ended(self, ending: Ending) -> None:
        if self._encoding not in ("", "identity"):  # no key could be found in it
            logger.error(
                "A response to %s was not recorded: it is encoded as %s, which was not asked for",
                self._request.target.partition("?")[0],
                self._encoding,
            )
            return
        recording = self._recording
        rest = b"".join(self._parts) if self._splitter is None else self._splitter.rest
        if rest or not recording.stream:
            recording.chunks.append(Chunk(self._at_ms(), rest))
        recording.ended = _ENDINGS[ending]
        self._save(self._request, recording)

    def _at_ms(self) -> float:
        return round((self._clock() - self._start_s) * 1000, 1)


def redactor_of(request: ForwardedRequest, secrets: Sequence[str] = ()) -> Redactor:
    """Return the redactor of a request's keys and of these."""
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers]
    return Redactor([*secrets, *secrets_of(headers, request.target)])

"""Recording: what passes between a client and an upstream becomes files, without holding it up."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from llmirage_server.http.relay import Ending, ForwardedRequest
from llmirage_server.http.sessions import SESSION_HEADERS, first_header, labels
from llmirage_server.replies.recordings.foreign import KEPT_HEADERS, redacted
from llmirage_server.replies.recordings.recording import Chunk, Recording
from llmirage_server.replies.recordings.redaction import Redactor, secrets_of
from llmirage_server.replies.recordings.store import RecordingWriter, endpoint_of
from llmirage_server.telemetry.traces.workload import RecordedCall, WorkloadWriter, recorded_call
from llmirage_shared.virtual_time import precise_clock
from llmirage_shared.wire.output import EventSplitter

logger = logging.getLogger("llmirage")
_OUTPUT_TOKENS = re.compile(rb'"(?:completion|output)_tokens"\s*:\s*(\d+)')  # of any API's usage; streams may count up

_ENDINGS: Mapping[Ending, str | None] = {
    "complete": None,
    "cut": "the upstream broke off",
    "client_left": "the client left",
    "stopped": "the recording was stopped",
}


class ExchangeRecorder:
    """Writes exchanges to a folder, one after the other, in a thread of its own."""

    def __init__(
        self,
        writer: RecordingWriter | None,
        secrets: Sequence[str] = (),
        written: Callable[[Recording], None] = lambda _: None,
        workload: WorkloadWriter | None = None,
    ) -> None:
        """secrets: keys that no file may have, beside those of requests. written: called in that thread for each file.

        writer: of recordings, workload: of a file that `run` replays; None: there is none.
        """
        self._writer = writer
        self._workload = workload
        self._failing = False
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
        if not isinstance(body, dict):
            return None
        tap = RecordingTap(request, body, self._save)
        if self._workload is not None:
            self._workload.begun(tap.start_s)
        return tap

    def redactor(self, request: ForwardedRequest) -> Redactor:
        return redactor_of(request, self._secrets)

    def close(self) -> None:
        """Wait until all files are written."""
        self._thread.shutdown()

    def _save(self, request: ForwardedRequest, recording: Recording, at_s: float) -> None:
        self._thread.submit(self._write, request, recording, at_s)

    def _write(self, request: ForwardedRequest, raw: Recording, at_s: float) -> None:
        try:
            recording = redacted(raw, self.redactor(request))
            if self._writer is not None:
                self._writer.write(recording)
                self._written(recording)
            if self._workload is not None and (call := _call_of(request, recording, at_s)) is not None:
                self._add(self._workload, call)
        except OSError as error:
            assert self._writer is not None
            logger.error("A recording could not be written to %s: %s", self._writer.folder, error.strerror or error)
        except RecursionError:
            logger.error("An exchange was not recorded: its JSON is nested too deep")
        except Exception:
            logger.exception("An exchange could not be recorded; please report this")

    def _add(self, workload: WorkloadWriter, call: RecordedCall) -> None:
        """Add a request to the workload. A disk that is full is one line of the log, until there is room again."""
        try:
            workload.add([call])
            self._failing = False
        except OSError as error:
            if not self._failing:
                logger.error("The workload cannot be written: %s: what cannot be written is left out", error)
            self._failing = True


class RecordingTap:
    """Collects the response to one request."""

    def __init__(
        self, request: ForwardedRequest, body: Any, save: Callable[[ForwardedRequest, Recording, float], None]
    ) -> None:
        self._clock = precise_clock()
        self.start_s = self._clock()
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
        self._save(self._request, recording, self.start_s)

    def _at_ms(self) -> float:
        return round((self._clock() - self.start_s) * 1000, 1)


def _call_of(request: ForwardedRequest, recording: Recording, at_s: float) -> RecordedCall | None:
    """Return the request, sent at that time, for a workload; None if it was not answered to its end, or asks for vectors."""
    if recording.ended is not None or recording.status != 200 or "/embeddings" in recording.path:
        return None
    end_s = at_s + (recording.chunks[-1].at_ms / 1000 if recording.chunks else 0.0)
    headers = {name.lower(): value for name, value in request.headers}
    session = first_header(headers.get, SESSION_HEADERS)
    tokens = [int(found) for chunk in recording.chunks for found in _OUTPUT_TOKENS.findall(chunk.data)]
    call = recorded_call(recording.path, recording.body, at_s, end_s, max(tokens, default=None), session)
    return replace(call, labels=labels(headers.get))


def redactor_of(request: ForwardedRequest, secrets: Sequence[str] = ()) -> Redactor:
    """Return the redactor of a request's keys and of these."""
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers]
    return Redactor([*secrets, *secrets_of(headers, request.target)])

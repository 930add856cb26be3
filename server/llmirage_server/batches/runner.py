"""Runs batches: checks their lines, sends each through the endpoint that it names, and writes what comes back."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from starlette.types import ASGIApp, Message, Scope

from llmirage_server.batches.batch import Batch, LineChecker, lines_of, usage_in
from llmirage_server.http.bodies import json_object
from llmirage_server.http.byte_budget import HELD, ByteBudget, Held
from llmirage_server.http.exchange import LARGE_BYTES, HttpExchange
from llmirage_server.http.json_pieces import written
from llmirage_server.service.models import ServedModel
from llmirage_server.service.service import Service
from llmirage_server.state.state import State
from llmirage_shared.wire import errors
from llmirage_shared.wire.errors import ApiError
from llmirage_shared.wire.output import json_text, new_id

MOST_AT_ONCE = 64  # lines in the cluster: each takes memory, and a turn of the event loop when it ends
LINE_PRIORITY = 1_000_000  # of requests in the cluster: lower ones are served first by engines that have priorities
_WAITED_S = 0.1  # of cluster time: a request that has waited so long is not only waiting for the next step
_LOOK_AGAIN_S = 0.02
_SCARCE_S = 60.0  # for which a line waits for room for its reply
_LINE_COPIES = 4  # that a line in progress takes: itself, its body, and both as objects


class Gate:
    """Counts the lines in the cluster, and the bytes of those in progress.

    changed: a line has ended, or a batch is to stop. scarce: is held by the line that waits for room for its reply.
    reading: by the long line that is read.
    """

    def __init__(self, service: Service, unread: ByteBudget) -> None:
        """unread: what lines in progress hold counts there, as requests do."""
        self.changed = asyncio.Event()
        self.scarce = asyncio.Lock()
        self.reading = asyncio.Lock()
        self._service = service
        self._unread = unread
        self._most = unread.most // 4  # with others: large requests have as much beside it
        self._inside: Counter[str] = Counter()  # by model

    def inside(self) -> int:
        return sum(self._inside.values())

    async def enter(self, served: ServedModel, stopped: Callable[[], bool]) -> bool:
        """Wait until another line may begin; False if it is stopped before."""
        most = max(1, served.seats // 2)
        while not stopped():
            is_full = self._inside[served.model] >= most or self.inside() >= MOST_AT_ONCE
            if not is_full and not self._others_wait():
                self._inside[served.model] += 1
                return True
            await self.look_again(None if is_full else _LOOK_AGAIN_S)
        return False

    def line(self) -> Held:
        """Return the bytes of another line, none yet."""
        return Held(self._unread, self._most)

    async def room(self, held: Held, size: int, stopped: Callable[[], bool]) -> None:
        """Wait until a line of this size has room; one larger than the room has it alone."""
        needed = min(_LINE_COPIES * size, self._most) if size > LARGE_BYTES else 0
        while needed and not held.takes(needed) and not stopped():
            await self.look_again(_LOOK_AGAIN_S)
        held.refused = False

    def is_alone(self, held: Held) -> bool:
        """Tell whether nothing else has room that this line lacks."""
        return self._unread.taken <= held.bytes

    async def look_again(self, most_s: float | None) -> None:
        """Wait for a change, but only so long: others than lines have the room, too."""
        self.changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                await self.changed.wait()

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait for something that `changed` tells of."""
        while not reached():
            self.changed.clear()
            await self.changed.wait()

    def leave(self, served: ServedModel) -> None:
        self._inside[served.model] -= 1
        self.changed.set()

    def _others_wait(self) -> bool:
        """Tell whether the server refuses requests now, or another request waits for a place in its engine's batch."""
        if self._service.responses.refusal is not None:
            return True
        latest_s = self._service.driver.now_s - _WAITED_S
        return any(
            math.isnan(request.admitted_s) and request.arrival_s < latest_s and request.priority < LINE_PRIORITY
            for request in self._service.responses.requests()
        )


MOST_BATCHES = 1_000  # that are remembered; the oldest that have ended go
MOST_UNENDED = 100
_RUNNING = 8  # batches whose lines run at once; the others wait for them
_MOST_READ_BYTES = 1 << 20  # of an answer
_USAGE_BYTES = 4096
_CANCELLING_S = 600.0  # for lines that have begun when a batch is cancelled
_UNSENT = {
    "cancelled": {"code": "batch_cancelled", "message": "The batch was cancelled before this request was executed."},
    "expired": {"code": "batch_expired", "message": "This request was not executed before the completion window ended."},
}
_LOST = {"code": "server_error", "message": "The connection ended before the response was complete."}

logger = logging.getLogger("llmirage")


class LineExchange(HttpExchange):
    """A request that is a line of a batch: it gives way to others, and rate limits do not count it."""

    __slots__ = ()
    priority = LINE_PRIORITY


class BatchRunner:
    """All batches, by id. Unended ones go on where a server before this one left them."""

    def __init__(self, service: Service, state: State, endpoints: Mapping[str, ASGIApp], unread: ByteBudget) -> None:
        """Find what is left of batches. endpoints: the applications that answer lines, by path. unread: see `Gate`."""
        self._unread = unread
        self._service = service
        self._state = state
        self._files = service.files
        self._endpoints = endpoints
        found = map(partial(state.get, "batch"), state.keys("batch"))
        kept = [Batch(each, state, service.files) for each in found if each is not None]
        self._batches = {batch.id: batch for batch in kept}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._gate = Gate(service, unread)

    def resume(self) -> None:
        """Let unended batches go on, on this loop. Nothing happens if they do already."""
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return
        self._loop = loop
        self._gate = Gate(self._service, self._unread)
        self._checking, self._running = asyncio.Semaphore(1), 0
        unended = [batch for batch in self._batches.values() if not batch.has_ended]
        for batch in unended:
            batch.why = "cancelled" if batch.status == "cancelling" else None
            self._start(batch)
        used = {file_id for batch in self._batches.values() for file_id in batch.hidden_files}
        self._cleaning = loop.create_task(self._files.forget_unfinished(used))

    def close(self) -> None:
        """Stop; what has not ended is resumed by the next server with this state."""
        for batch in self._batches.values():
            if batch.task is not None:
                batch.task.cancel()

    def all(self, messages: bool = False) -> list[Batch]:
        """Return the batches, oldest first. messages: those of messages, else all others."""
        self.resume()  # without the server's start, as under httpx's transport
        return [batch for batch in self._batches.values() if batch.has_messages == messages]

    def found(self, batch_id: str, messages: bool = False) -> Batch:
        """Return a batch. Raises ApiError (404)."""
        self.resume()
        batch = self._batches.get(batch_id)
        if batch is None or batch.has_messages != messages:
            raise ApiError(f"No batch found with id '{errors.shorten(batch_id)}'.", status=404)
        return batch

    async def make_room(self) -> None:
        """Forget the oldest batch that has ended if there are many. Raises ApiError (429) if too many have not ended."""
        self.resume()
        ended = [batch for batch in self._batches.values() if batch.has_ended]
        if len(self._batches) - len(ended) >= MOST_UNENDED:
            raise errors.too_many_batches(MOST_UNENDED)
        if len(self._batches) >= MOST_BATCHES:
            await self.forget(ended[0])

    def start(self, batch: Batch) -> None:
        self._batches[batch.id] = batch
        self._start(batch)

    async def forget(self, batch: Batch) -> None:
        """Delete a batch that has ended, with the files that nobody else sees. Raises ApiError."""
        self._state.delete("batch", batch.id)
        self._batches.pop(batch.id, None)
        await batch.drop_files()

    def cancel(self, batch: Batch) -> None:
        """Cancel a batch. Raises ApiError (409) for one that has ended otherwise, or is about to."""
        if batch.status in ("validating", "in_progress"):
            batch.becomes("cancelling")
            self._stop(batch, "cancelled")
        elif batch.status not in ("cancelling", "cancelled"):
            raise ApiError(f"Cannot cancel a batch with status '{batch.status}'.", status=409)

    def exposition(self) -> str:
        """Prometheus's text format."""
        counts = Counter(batch.status for batch in self._batches.values())
        head = "# HELP llmirage:batches Batches by status.\n# TYPE llmirage:batches gauge\n"
        lines = [f'llmirage:batches{{status="{status}"}} {count:.1f}\n' for status, count in sorted(counts.items())]
        lines.append("# HELP llmirage:batch_lines_running Lines of batches that are being answered.\n")
        lines.append(f"# TYPE llmirage:batch_lines_running gauge\nllmirage:batch_lines_running {self._gate.inside():.1f}\n")
        lines.append("# HELP llmirage:files Files that are kept.\n# TYPE llmirage:files gauge\n")
        return head + "".join(lines) + f"llmirage:files {self._files.count():.1f}\n"

    def _start(self, batch: Batch) -> None:
        assert self._loop is not None
        self._files.hold(batch.object["input_file_id"])
        batch.task = self._loop.create_task(self._live(batch))

    def _stop(self, batch: Batch, why: Any) -> None:
        batch.why = batch.why or why
        self._gate.changed.set()

    async def _live(self, batch: Batch) -> None:
        """Run a batch, or the rest of one, to its end."""
        assert self._loop is not None
        left_s = batch.object["expires_at"] - self._files.now_s()
        expiry = self._loop.call_later(max(0.0, left_s), self._stop, batch, "expired")
        try:
            await self._check_and_run(batch)
        except ApiError as error:
            logger.error("Batch %s failed: %s", batch.id, error.message)
            await self._fail(batch, error)
        except Exception:
            logger.exception("A batch failed inside the server; please report this")
            self._service.responses.metrics.count_error()
            await self._fail(batch, errors.internal_error())
        finally:
            expiry.cancel()
            self._files.release(batch.object["input_file_id"])
        with suppress(ApiError):
            if batch.has_messages and batch.has_ended:
                await self._files.drop(batch.object["input_file_id"])
            await self._files.forget_expired()

    async def _fail(self, batch: Batch, error: ApiError) -> None:
        code = error.code or "server_error"
        with suppress(ApiError):
            await batch.drop_files()
        with suppress(ApiError):
            batch.fails([{"code": code, "message": error.message, "param": error.param, "line": None}])

    async def _check_and_run(self, batch: Batch) -> None:
        if batch.status == "validating":
            async with self._checking:
                if not await self._check(batch):
                    return
        if batch.object["in_progress_at"] is not None:
            await self._gate.until(lambda: self._running < _RUNNING or batch.why is not None)
            self._running += 1
            try:
                await _LinesUnderWay(batch, self._service, self._gate, self._endpoints[batch.object["endpoint"]]).run()
            finally:
                self._running -= 1
                self._gate.changed.set()
        ending = batch.why or "completed"
        if ending == "completed":
            batch.becomes("finalizing")
        batch.publish()
        batch.becomes(ending)

    async def _check(self, batch: Batch) -> bool:
        """Tell whether its lines can run: not if they are wrong, or if it is cancelled before."""
        file_id, endpoint = batch.object["input_file_id"], batch.object["endpoint"]
        checker = LineChecker(endpoint, self._service.models.find if endpoint in _OF_SERVED else lambda name: None)
        apart = self._service.text.in_thread
        try:
            purpose = self._files.object(file_id)["purpose"]
        except ApiError:
            whose = "organization llmirage does not have access to it"
            batch.fails([_of_input(f"Cannot find file {errors.shorten(file_id)}, or {whose}.")])
            return False
        if purpose != "batch":
            batch.fails([_of_input(f"The file's purpose is '{purpose}'; a batch reads files with the purpose 'batch'.")])
            return False
        held = self._gate.line()

        async def room(size: int) -> None:
            held.release()
            await self._gate.room(held, size, lambda: batch.why is not None)

        try:
            async for number, line in lines_of(self._files, file_id, room, self._gate.reading):
                check = partial(checker.check, number, line)
                if batch.why is not None or not (await apart(check) if len(line) > LARGE_BYTES else check()):
                    break
            else:
                checker.ended()
        finally:
            held.release()
        if batch.why is not None:
            return True
        batch.object["model"] = checker.model
        batch.object["request_counts"]["total"] = checker.total
        if checker.problems:
            batch.fails(checker.problems)
            return False
        batch.becomes("in_progress")
        return True


_OF_SERVED = ("/v1/chat/completions", "/v1/completions", "/v1/responses")


def _of_input(message: str) -> dict[str, Any]:
    return {"code": "invalid_request", "message": message, "param": "file_id", "line": None}


class _LinesUnderWay:
    """The lines of one batch, some at once."""

    def __init__(self, batch: Batch, service: Service, gate: Gate, endpoint: ASGIApp) -> None:
        self._batch = batch
        self._service = service
        self._gate = gate
        self._endpoint = endpoint
        self._begun: dict[asyncio.Task[None], str] = {}  # with their custom_ids
        self._held = gate.line()  # by the line that is read
        self._problem: BaseException | None = None

    async def run(self) -> None:
        """Answer every line, or as many as can be before the batch is to stop. Raises ApiError if results find no room."""
        batch = self._batch
        done = await batch.already_written()
        try:
            async for _, line in lines_of(
                self._service.files, batch.object["input_file_id"], self._room, self._gate.reading
            ):
                read = partial(_Line.read, line)
                request = await self._service.text.in_thread(read) if len(line) > LARGE_BYTES else read()
                del line, read
                if request.custom_id in done:
                    continue
                served = self._service.models.meant(request.model)
                if await self._gate.enter(served, self._is_over):
                    held, self._held = self._held, self._gate.line()
                    task = asyncio.get_running_loop().create_task(self._line(request, held))
                    self._begun[task] = request.custom_id
                    task.add_done_callback(partial(self._line_ended, served, held))
                    await asyncio.sleep(0)  # one line is planned in a turn of the loop
                elif self._problem is None:
                    self._unsent(request.custom_id)
            await self._wait()
        finally:
            self._held.release()
            for task in list(self._begun):
                task.cancel()
        if self._problem is not None:
            raise self._problem

    async def _room(self, size: int) -> None:
        self._held.release()
        await self._gate.room(self._held, size, self._is_over)

    async def _wait(self) -> None:
        """For the lines that have begun: as long as it takes, or if the batch is to stop, not much longer."""
        await self._gate.until(lambda: not self._begun or self._is_over())
        if self._begun and self._problem is None and self._batch.why == "cancelled":
            await asyncio.wait(list(self._begun), timeout=_CANCELLING_S)
        late = dict(self._begun)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)
        if self._problem is None:
            for task, custom_id in late.items():
                if task.cancelled():
                    self._unsent(custom_id)

    def _is_over(self) -> bool:
        return self._batch.why is not None or self._problem is not None

    def _unsent(self, custom_id: str) -> None:
        assert self._batch.why is not None
        self._batch.unsent += 1
        self._batch.write("error", *_result(custom_id, None, _UNSENT[self._batch.why]))

    async def _line(self, request: _Line, held: Held) -> None:
        answer = await self._answered(request, held)
        written = partial(_result, request.custom_id, answer, _LOST if answer is None else None)
        is_large = answer is not None and len(answer.body) > LARGE_BYTES
        line, usage = await self._service.text.in_thread(written) if is_large else written()
        self._batch.write("output" if answer is not None and answer.status_code < 400 else "error", line, usage)

    def _line_ended(self, served: ServedModel, held: Held, task: asyncio.Task[None]) -> None:
        del self._begun[task]
        held.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._problem = self._problem or error
        self._gate.leave(served)

    async def _answered(self, request: _Line, held: Held) -> _Answer | None:
        """Return the answer to a line, None if it breaks off. While others have the room that its reply needs, it waits."""
        own, answer = held.bytes, await self._answered_once(request, held)
        if not held.refused:
            return answer
        alone = self._gate.is_alone(held)
        held.release()
        async with self._gate.scarce:
            until_s = asyncio.get_running_loop().time() + _SCARCE_S
            while held.refused and not alone and not self._is_over() and asyncio.get_running_loop().time() < until_s:
                held.release()
                await self._gate.look_again(1.0)
                held.takes(own)
                held.refused = False
                answer = await self._answered_once(request, held)
                alone = self._gate.is_alone(held)
        return answer

    async def _answered_once(self, request: _Line, held: Held) -> _Answer | None:
        """Return the answer to a line, None if it breaks off. While the server refuses all requests, it waits."""
        while True:
            answer = await _sent(self._endpoint, self._batch.object["endpoint"], request, held)
            if answer is None or answer.status_code != 503 or self._service.responses.refusal is None:
                return answer
            while self._service.responses.refusal is not None:
                await asyncio.sleep(1.0)


class _Line(NamedTuple):
    """A line of an input file. body: of its request, as JSON."""

    custom_id: str
    model: str
    headers: Mapping[str, str]
    body: bytes

    @classmethod
    def read(cls, line: bytes) -> _Line:
        request = json_object(line)
        model = request["body"].get("model")
        body = b"".join(written(request["body"]))
        return cls(request["custom_id"], model if isinstance(model, str) else "", request.get("headers") or {}, body)


class _Answer(NamedTuple):
    status_code: int
    request_id: str
    body: bytes


def _result(custom_id: str, answer: _Answer | None, error: dict[str, str] | None) -> tuple[bytes, Any]:
    """Return the result of a line as a line, and its usage. Hundreds of thousands of numbers are not read again."""
    result: dict[str, Any] = {"id": new_id("batch_req_"), "custom_id": custom_id, "response": None, "error": error}
    if answer is None:
        return _line_of(result), None
    body = answer.body
    result["response"] = {"status_code": answer.status_code, "request_id": answer.request_id, "body": None}
    if len(body) > _MOST_READ_BYTES and body[:1] + body[-1:] == b"{}" and b"\n" not in body:
        before, _, after = _line_of(result).rpartition(b"null},")  # the body comes before the error
        return b"".join([before, body, b"},", after]), _last_usage(body)
    try:
        value = json.loads(body)
    except ValueError:  # an injected fault
        value = body.decode("utf-8", "replace")
    result["response"]["body"] = value
    return _line_of(result), usage_in(value)


def _line_of(result: dict[str, Any]) -> bytes:
    return json_text(result).encode("utf-8", "replace") + b"\n"


def _last_usage(body: bytes) -> Any:
    """Return the usage of a large object, near whose end it stands."""
    end = body[-_USAGE_BYTES:].decode("utf-8", "replace")
    try:
        return json.JSONDecoder().raw_decode(end, end.rindex('"usage":') + len('"usage":'))[0]
    except ValueError:
        return None


async def _sent(endpoint: ASGIApp, path: str, line: _Line, held: Held) -> _Answer | None:
    """Return an endpoint's answer, None if it breaks off. The line's headers have names in lower case."""
    more = [(name.encode(), value.encode("latin-1", "replace")) for name, value in line.headers.items()]
    scope: Scope = {
        "type": "http", "http_version": "1.1", "method": "POST", "path": path, "raw_path": path.encode(), "root_path": "",
        "scheme": "http", "query_string": b"", "headers": [(b"content-type", b"application/json"), *more], "client": None,
        "path_params": {}, "state": {HELD: held},
    }  # fmt: skip
    unread: list[Message] = [{"type": "http.request", "body": line.body}]
    started: list[Message] = []
    received: list[bytes] = []

    async def receive() -> Message:
        if not unread:
            await asyncio.Event().wait()  # the client stays
        return unread.pop()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            started.append(message)
        else:
            received.append(message.get("body", b""))

    try:
        await endpoint(scope, receive, send)
    except ConnectionError:  # an injected fault
        return None
    if not started:
        return None
    request_id = dict(started[0]["headers"]).get(b"x-request-id", b"").decode("latin-1")
    return _Answer(started[0]["status"], request_id, b"".join(received))

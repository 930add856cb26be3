"""The effect of a fault on one request: before the reply, and on the connection."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Send

from llmirage_server.faults.fault import FaultyConnection, InjectedFault, SoFar
from llmirage_server.faults.rule import FaultRule, Subject, read_rule
from llmirage_server.http.access import given_key
from llmirage_server.http.event_stream import SERVER_SEND, server_send, transport_of
from llmirage_server.http.exchange import HttpExchange
from llmirage_server.http.fault_hooks import Limits, Placed
from llmirage_server.http.faults import InjectedFaults
from llmirage_server.telemetry.journal import Outcome, cut
from llmirage_shared.wire.errors import ApiError
from llmirage_shared.yaml_lines import node_of

_HEADER = "X-Llmirage-Fault"
_WITHOUT_BODY = ("GET", "HEAD", "DELETE")


def rule_of_header(given: str, exchange: HttpExchange) -> FaultRule:
    """Return the fault that a header orders for its request. Raises ApiError for one that does not exist."""
    problems: list[str] = []
    rule = read_rule(node_of(given), _HEADER, lambda _, place, problem: problems.append(f"{place}: {problem}"), _HEADER)
    if rule is None:
        raise ApiError("; ".join(problems), code="invalid_fault")
    if rule.conditions.endpoint is None:  # whatever the request asks for
        rule.conditions = replace(rule.conditions, endpoint=exchange.scope["path"])
    if rule.fault.streams_only and exchange.scope["method"] in _WITHOUT_BODY:
        raise _no_stream(rule)
    return rule


class RequestFault:
    """The fault of one request. limits: rate limits instead of the server's. generation: what the cluster serves for it."""

    def __init__(self, faults: InjectedFaults, exchange: HttpExchange, of_header: FaultRule | None = None) -> None:
        """of_header: the fault that the request's header names."""
        scope = exchange.scope
        instance = None if exchange.instance < 0 else exchange.instance
        self.subject = Subject(scope["method"], scope["path"], given_key(exchange), instance=instance)
        self.limits: Limits | None = None
        self.generation: Placed | None = None
        self._faults = faults
        self._exchange = exchange
        self._of_header = of_header
        self._pending: tuple[FaultRule, ...] | None = None
        self._fault: InjectedFault | None = None
        self._hold_s = 0.0
        self._connection: FaultyConnection | None = None

    async def choose(self, rules: tuple[FaultRule, ...] | None) -> None:
        """Choose among these faults, or all in force. Raises ApiError for one that refuses the request."""
        chosen = self._faults.first(self.subject, rules)
        self._pending = chosen if isinstance(chosen, tuple) else None
        if not isinstance(chosen, FaultRule):
            return
        fault = chosen.fault
        self._exchange.entry.fault = fault.kind
        self.limits = self._faults.limits_of(chosen)
        if fault.refusal is not None:
            raise fault.refusal
        if fault.hold_s:
            self._hold_s = fault.hold_s
            if self.subject.method in _WITHOUT_BODY or self.subject.body is not None:
                await self._hold()
        elif self.limits is None:
            self._fault = fault

    async def parsed(self, body: Mapping[str, Any]) -> None:
        """Take the body. Raises ApiError for a fault that refuses the request."""
        self.subject = replace(self.subject, body=body)
        cuts = self._faults.cuts
        if cuts:
            self._exchange.entry.continues = tuple([cuts[text] for text in assistant_texts(body) if text in cuts])
        if self._hold_s:
            await self._hold()
        elif self._pending is not None:
            if self._of_header is not None and self._of_header.fault.streams_only and not body.get("stream"):
                raise _no_stream(self._of_header)
            await self.choose(self._pending)

    async def scripted(self, rule: FaultRule, streamed: bool) -> None:
        """Let this fault happen, in place of any other. Raises ApiError for one that refuses the request."""
        self.subject = replace(self.subject, body={"model": self._exchange.entry.model, "stream": streamed})
        self._fault = None
        await self.choose((rule,))

    async def respond(self, response: Response, receive: Receive, send: Send) -> None:
        """Send the response, altered. Raises ConnectionError if it was to break a connection that is none (in process)."""
        exchange = self._exchange
        if self._hold_s:  # of a handler that reads no body
            try:
                await self._hold()
            except ClientDisconnect:
                return
        if self._fault is None and self._pending is None:
            await response(exchange.scope, receive, send)
            return
        so_far = SoFar(exchange.error_body)
        transport = transport_of(server_send(exchange.scope, send))
        connection = self._connection = FaultyConnection(self._at_start, self, so_far, receive, send, transport)
        await response({**exchange.scope, SERVER_SEND: connection.send}, connection.receive, connection.send)
        connection.raise_if_broken()

    def ended(self, status: int | None, outcome: Outcome) -> tuple[int | None, Outcome]:
        """Return the status that was sent and how the response ended, which is as given unless the fault changed it."""
        connection = self._connection
        if connection is None or connection.altered is None:
            return status, outcome
        if connection.ended or outcome == "failed":
            self._faults.was_cut(connection.so_far.text, self._exchange.entry.number)
        if connection.ended:
            return connection.status, "cut"
        return connection.status, "complete" if connection.altered.refusal else outcome

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self._faults.driver.speed)

    def crash(self, restart_after_s: float | None) -> None:
        if self.generation is not None and self.generation.instance >= 0:
            self._faults.driver.act("crash", self.generation.instance, restart_after_s)

    def _at_start(self) -> InjectedFault | None:
        """Return the fault that alters the response that begins now."""
        if self._pending is not None:
            instance = -1 if self.generation is None else self.generation.instance
            known = replace(self.subject, body=self.subject.body or {}, instance=instance)
            chosen = self._faults.first(known, self._pending)
            if isinstance(chosen, FaultRule):
                self._fault = chosen.fault
                self._exchange.entry.fault = chosen.fault.kind
                if (refusal := chosen.fault.refusal) is not None:
                    self._exchange.entry.error = cut(refusal.message)
                    self._exchange.entry.advice = refusal.headers
        return self._fault

    async def _hold(self) -> None:
        """Keep the request from the cluster. Raises ClientDisconnect."""
        exchange, began_s = self._exchange, self._exchange.elapsed_s()
        sleeping = asyncio.ensure_future(self.sleep(self._hold_s))
        self._hold_s = 0.0
        leaving = asyncio.ensure_future(exchange.client_left())
        try:
            await asyncio.wait((sleeping, leaving), return_when=asyncio.FIRST_COMPLETED)
            if leaving.done():
                raise ClientDisconnect
        finally:
            sleeping.cancel()
            leaving.cancel()
        exchange.held_s += exchange.elapsed_s() - began_s


def _no_stream(rule: FaultRule) -> ApiError:
    return ApiError(f"{_HEADER}: {rule.fault.kind} happens to streams: the request needs stream true.")


def assistant_texts(body: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts of the assistant's messages in a request of any API, without white space at their ends.

    Without the last message: an assistant's text there is one to be continued.
    """
    messages = body.get("messages") or body.get("input")
    for message in messages[:-1] if isinstance(messages, list) else ():
        if isinstance(message, dict) and message.get("role") == "assistant":
            content = message.get("content")
            parts = content if isinstance(content, list) else [{"text": content}]
            texts = [part.get("text") for part in parts if isinstance(part, dict)]
            yield "".join([text for text in texts if isinstance(text, str)]).strip()

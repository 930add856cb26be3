"""The scripts of a server: files, read again when they change; rules of run time; what they reply to a request."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from llmirage_server.drivers.live import Driver
from llmirage_server.faults.rule import read_rule
from llmirage_server.http.exchange import AnsweredElsewhereError, HttpExchange
from llmirage_server.http.faults import InjectedFaults
from llmirage_server.http.relay import ForwardedRequest, Upstream
from llmirage_server.replies.embedding import same_text
from llmirage_server.replies.reply import Reply, ReplyRequest
from llmirage_server.replies.scripts.conditions import CONVERSING, ENDPOINTS, ScriptRequest
from llmirage_server.replies.scripts.reader import read_scripts, script_of
from llmirage_server.replies.scripts.rule import (
    Fallback,
    RuleMatch,
    Script,
    ScriptedVector,
    ScriptError,
    ScriptRule,
    planned_reply,
)
from llmirage_server.replies.structured.budget import InThread
from llmirage_shared.settings import ConfigError
from llmirage_shared.tokens import Tokenizer
from llmirage_shared.wire import errors
from llmirage_shared.wire.chat import ChatHistory
from llmirage_shared.wire.errors import ApiError
from llmirage_shared.wire.output import encoded

logger = logging.getLogger("llmirage")

_LOOK_AGAIN_S = 0.25  # between two looks at the files


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    """A script's answer to a request. matches: one for each prompt, None where no rule fits. usage: counts to report."""

    matches: Sequence[RuleMatch | None]
    usage: Mapping[str, int]

    def reply(
        self, prompt: int, request: ReplyRequest, tokenizer: Tokenizer, generated: Callable[[ReplyRequest], Reply]
    ) -> Reply:
        """Return the reply to one choice of a prompt. Raises ApiError for a rule that cannot reply to it."""
        match = self.matches[prompt]
        if match is None:
            return generated(request)
        try:
            return planned_reply(match, request, tokenizer, generated)
        except ScriptError as error:
            raise ApiError(f"{match.rule.place}: {error}", code="script_error") from None


class LoadedScripts:
    """The rules in force: those added at run time, the last first, then those of the files."""

    def __init__(
        self,
        driver: Driver,
        plan_in_thread: InThread,
        faults: InjectedFaults,
        upstream: Upstream | None,
        under_way: set[Any],
        paths: Sequence[str] = (),
        inline: Mapping[str, Any] | None = None,
    ) -> None:
        """Read the files.

        Args:
            driver: The driver whose speed scales delays.
            plan_in_thread: Runs long work of planning.
            faults: The faults that rules may order.
            upstream: The server that may answer where no rule fits.
            under_way: Has the upstream's responses while they pass.
            paths: Files of scripts.
            inline: A script as Python data.

        Raises:
            ConfigError: Names all problems of the files and of the inline script.
        """
        self._driver = driver
        self._plan_in_thread = plan_in_thread
        self._faults = faults
        self._upstream = upstream
        self._under_way = under_way
        self.paths = tuple(paths)
        self.misses = 0
        self._scripts = 0  # those given as data so far
        self._stamps = self._look()
        self._looked_s = time.monotonic()
        self._added = Script() if inline is None else self._of_data(inline)
        self._files = self._of_files()

    @property
    def rules(self) -> Sequence[ScriptRule]:
        return [*self._added.rules, *self._files.rules]

    def vector(self, text: str) -> ScriptedVector | None:
        """Return the scripted embedding of a text, None for one that is generated."""
        self.refresh()
        wanted = same_text(text)
        return self._added.vectors.get(wanted) or self._files.vectors.get(wanted)

    @property
    def fallback(self) -> Fallback:
        return self._files.fallback if self._added.fallback == "generated" else self._added.fallback

    def add(self, data: Mapping[str, Any]) -> None:
        """Put rules before all others. Raises ConfigError."""
        script = self._of_data(data)
        fallback = script.fallback if "fallback" in data else self._added.fallback
        vectors = {**self._added.vectors, **script.vectors}
        self._added = Script([*script.rules, *self._added.rules], fallback, vectors=vectors)

    def replace(self, data: Mapping[str, Any]) -> None:
        """Drop all rules for these; files are not read any more. Raises ConfigError."""
        self._added = self._of_data(data)
        self._files, self.paths, self._stamps = Script(), (), []

    def shown(self) -> dict[str, Any]:
        """Return the rules in force and how often each has replied, as JSON data."""
        rules = [{"rule": rule.place, "fitting": rule.fitting, "replied": rule.replied} for rule in self.rules]
        return {"files": list(self.paths), "rules": rules, "fallback": self.fallback, "misses": self.misses}

    def refresh(self) -> None:
        """Read the files again if one has changed. Problems are told of once; the rules then stay as they are."""
        if not self.paths or (now_s := time.monotonic()) < self._looked_s + _LOOK_AGAIN_S:
            return
        self._looked_s = now_s
        if (stamps := self._look()) == self._stamps:
            return
        self._stamps = stamps
        try:
            self._files = self._of_files()
        except ConfigError as error:
            more = f" (and {len(error.problems) - 1} more problems)" if len(error.problems) > 1 else ""
            logger.error("The script was not read again, its rules stay as they were: %s%s", error.problems[0], more)
        else:
            logger.warning("Read again: %s", ", ".join(self.paths))

    async def answer(
        self, exchange: HttpExchange, history: ChatHistory, users: Sequence[str], streamed: bool
    ) -> ScriptedAnswer | None:
        """Return the answer of the rules, after the fault and the delay that they ask for; None if no rule fits.

        users: the last user message, or each prompt. If no rule fits: raises ApiError (404) or AnsweredElsewhereError, if
        the script says so.
        """
        endpoint = ENDPOINTS.get(exchange.scope["path"])
        if endpoint is None:
            return None
        self.refresh()
        script = Script(self.rules, self.fallback)
        asked = [_request(exchange, endpoint, history, user) for user in users]
        part = "messages" if endpoint in CONVERSING else "prompt"
        fitting = await exchange.planned(lambda: list(map(script.fitting, asked)), part, self._plan_in_thread)
        matches = [script.match(request, found) for request, found in zip(asked, fitting, strict=True)]
        self.misses += script.misses
        found = next((match for match in matches if match is not None), None)
        if found is None:
            exchange.entry.rule = f"fallback: {script.fallback}"
            if script.fallback == "error":
                raise errors.no_rule(endpoint, users[0])
            if script.fallback == "upstream" and self._upstream is not None:
                request = ForwardedRequest.of(exchange, encoded(exchange.body))
                response = await self._upstream.answer(request, None, self._under_way)
                raise AnsweredElsewhereError(response)
            return None
        exchange.entry.rule = found.rule.place
        if found.reply.fault is not None:
            await self._faults.happen(found.reply.fault, exchange, streamed)
        if found.reply.delay_s:
            held_s = found.reply.delay_s / self._driver.speed
            await asyncio.sleep(held_s)
            exchange.held_s += held_s
        return ScriptedAnswer(matches, found.reply.usage)

    def _of_files(self) -> Script:
        return self._prepared(read_scripts(self.paths, partial(read_rule, imports=True)))

    def _of_data(self, data: Mapping[str, Any]) -> Script:
        name = f"script {self._scripts + 1}" if self._scripts else "script"
        script = self._prepared(script_of(data, read_rule, name))
        self._scripts += 1
        return script

    def _prepared(self, script: Script) -> Script:
        if script.fallback == "upstream" and self._upstream is None:
            raise ConfigError(["fallback: upstream needs the address of another server: --upstream URL"])
        for fault in {reply.fault for rule in script.rules for reply in rule.replies} - {None}:
            self._faults.prepare(fault)
        return script

    def _look(self) -> list[tuple[int, int]]:
        return [(stat.st_mtime_ns, stat.st_size) for path in self.paths if (stat := _stat(path)) is not None]


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


def _request(exchange: HttpExchange, endpoint: str, history: ChatHistory, user: str) -> ScriptRequest:
    metadata = exchange.body.get("metadata")
    return ScriptRequest(
        endpoint,
        exchange.entry.model,
        user,
        history.system,
        history.turn,
        history.replies,
        _declared(exchange.body) if endpoint in CONVERSING else (),
        tuple(zip(history.called, history.results, strict=True)),
        history.newest,
        lambda name: exchange.header(name.encode("latin-1", "replace")),
        metadata if isinstance(metadata, Mapping) else None,
    )


def _declared(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the tools that a checked body of any API declares; a hosted tool is called by its type."""
    tools = [*(body.get("tools") or ()), *(body.get("functions") or ())]
    inner = [tool.get("function") or tool.get("custom") or tool for tool in tools]
    return tuple([str(tool.get("name") or tool.get("type")) for tool in inner])

"""KV that outside routers pass from a prefill to a decode request: the names under which both are told of it.

vLLM's NixlConnector: the answer to a request with `do_remote_decode` names the KV, and the one with `do_remote_prefill`
brings that name. MooncakeConnector (`transfer_id`) and SGLang (`bootstrap_room`): both come at once, with the router's name.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmirage_server.cluster.request import Request
from llmirage_server.drivers.live import Driver
from llmirage_server.http.exchange import HttpExchange
from llmirage_shared.wire import errors

FIELDS = ("kv_transfer_params", "bootstrap_room")
_Name = tuple[str, str | int]
_LEAST_PAGE = 16  # tokens of a block in the ids of blocks, which nobody reads
_BLOCKS = 1 << 20
_ELSEWHERE = 1024  # links from other processes
_SIDE_PORT = 5600  # VLLM_NIXL_SIDE_CHANNEL_PORT


@dataclass(frozen=True, slots=True)
class HandoffEngine:
    """An instance as routers of prefill and decode see it. role: prefill, decode, or both."""

    role: str
    tp: int
    page_tokens: int


@dataclass(frozen=True, slots=True)
class Handoff:
    """The part of one HTTP request in handing over KV. names: of the KV of each prompt; "": the name is to be made."""

    prefills: bool
    names: Sequence[_Name]
    awaited: bool  # its other half may come later
    elsewhere: str = ""  # the prefill engine's id in another process


class KVHandoffs:
    """The KV that finished requests keep, and the decode requests that wait for it, by name."""

    def __init__(
        self,
        driver: Driver,
        engines: Sequence[HandoffEngine],
        sent_s: Callable[[int], float],
        *,
        timeout_s: float,
        recompute: bool,
        mode: str | None,
    ) -> None:
        """Start without any.

        engines: by instance.
        sent_s: returns how long the KV of as many tokens travels.
        timeout_s: of the cluster's time, for which KV is kept and waited for.
        recompute: whose KV is not there computes its prompt; else it fails.
        mode: the role of engines without one for requests with a bootstrap_room.
        """
        self._driver = driver
        self._engines = engines
        self._timeout_s = timeout_s
        # Nobody here takes the KV of a single engine, and nobody tells it: it frees it when it might have arrived.
        self._sent_s = sent_s if len(engines) == 1 else lambda tokens: math.inf
        self._sweep_s = 0.02 if len(engines) == 1 else min(max(self._timeout_here_s / 100, 0.05), 5.0)
        self._recompute = recompute
        self._mode = mode
        self._has_prefill = any(engine.role == "prefill" for engine in engines)
        self._process = f"{os.urandom(4).hex()}-{os.urandom(2).hex()}-4{os.urandom(2).hex()[1:]}-a{os.urandom(2).hex()[1:]}"
        self._holders: dict[_Name, Request] = {}
        self._waiting: dict[_Name, asyncio.Future[Request]] = {}
        self._kept: dict[Request, tuple[_Name, float]] = {}  # until their KV is free, with the loop's time of their coming
        self._sweeping = False
        self._first_block = itertools.count(1)

    def engine_id(self, instance: int) -> str:
        """Return vLLM's engine_id of an instance."""
        return f"{self._process}-{max(0, instance):012x}"

    def asked(self, exchange: HttpExchange, choices: int) -> Handoff | None:
        """Return what a request with any of FIELDS asks for. Raises ApiError for what cannot be.

        choices: of all prompts.
        """
        params, room = exchange.body.get("kv_transfer_params"), exchange.body.get("bootstrap_room")
        handoff = None
        if params is not None:
            if not isinstance(params, dict):
                raise errors.wrong_type("kv_transfer_params", "an object", params)
            handoff = self._of_params(params)
        elif room is not None:
            handoff = self._of_rooms(room if isinstance(room, list) else [room], exchange.instance)
        if handoff is not None and len(handoff.names) != choices:
            field = "bootstrap_room" if params is None else "kv_transfer_params"
            raise errors.unsupported(field, f"{field} needs one prompt, or a room for each, and n=1; this has {choices}.")
        return handoff

    def _of_params(self, params: Mapping[str, Any]) -> Handoff | None:
        transfer, request, engine = (
            str(params.get(name) or "")[:200] for name in ("transfer_id", "remote_request_id", "remote_engine_id")
        )
        if params.get("do_remote_decode"):
            return Handoff(True, [("transfer", transfer)], bool(transfer))
        if not params.get("do_remote_prefill") or not (transfer or (params.get("remote_block_ids") and request)):
            return None  # as vLLM, which warns of the latter
        own = engine.startswith(self._process)
        name = ("transfer", transfer) if transfer else ("request", request)
        return Handoff(False, [name], bool(transfer), "" if own else engine or "unknown")

    def _of_rooms(self, rooms: Sequence[Any], instance: int) -> Handoff | None:
        role: str | None = self._engines[max(0, instance)].role
        role = self._mode if role == "both" else role
        if role not in ("prefill", "decode"):
            return None
        for room in rooms:
            if type(room) is not int:
                raise errors.wrong_type("bootstrap_room", "an integer", room)
        return Handoff(role == "prefill", [("room", room) for room in rooms], True, "" if self._has_prefill else "unknown")

    async def bind(self, handoff: Handoff, requests: Sequence[Request], exchange: HttpExchange) -> dict[str, Any]:
        """Join requests with their other halves; return what the answer says as `kv_transfer_params`.

        Raises ApiError where KV is not there, or does not come.
        """
        if not handoff.prefills:
            for name, request in zip(handoff.names, requests, strict=True):
                request.kv_from = await self._holder(name, handoff, exchange)
            return {}
        shown: dict[str, Any] = {}
        for name, request in zip(handoff.names, requests, strict=True):
            request.keeps_kv = True
            if not name[1]:
                name = "request", f"cmpl-{exchange.request_id.decode()}-{os.urandom(4).hex()}"
                shown = self._params(str(name[1]), request, exchange)
            if name in self._holders:
                raise errors.in_use(*map(str, name))
            self._keep(name, request)
        return shown

    def _params(self, name: str, request: Request, exchange: HttpExchange) -> dict[str, Any]:
        engine = self._engines[max(0, exchange.instance)]
        first = next(self._first_block) % _BLOCKS
        blocks = -(-request.prompt_tokens // max(engine.page_tokens, _LEAST_PAGE))
        host, _ = exchange.scope.get("server") or ("localhost", 0)
        params = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(range(first, first + blocks))],
            "remote_engine_id": self.engine_id(exchange.instance),
            "remote_request_id": name,
            "remote_host": host,
            "remote_port": _SIDE_PORT + max(0, exchange.instance),
            "tp_size": engine.tp,
            "remote_num_tokens": request.prompt_tokens,
        }
        return {"kv_transfer_params": params}

    def _keep(self, name: _Name, request: Request) -> None:
        loop = asyncio.get_running_loop()
        self._holders[name] = request
        self._kept[request] = name, loop.time()
        waiting = self._waiting.pop(name, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(request)
        if not self._sweeping:
            self._sweeping = True
            loop.call_later(self._sweep_s, self._sweep)

    @property
    def _timeout_here_s(self) -> float:
        """The timeout in seconds of the loop; at any speed (max) the cluster's seconds."""
        return self._timeout_s if math.isinf(self._driver.speed) else self._timeout_s / self._driver.speed

    def _sweep(self) -> None:
        """Free KV that was kept too long, and forget what is free."""
        loop, paced = asyncio.get_running_loop(), not math.isinf(self._driver.speed)
        for request, (name, came_s) in list(self._kept.items()):
            over, finished_s = loop.time() - came_s > self._timeout_here_s, request.finished_s
            if request.keeps_kv and paced and not math.isnan(finished_s):
                kept_s = min(self._timeout_s, self._sent_s(request.prompt_tokens))
                over = self._driver.now_s - finished_s > kept_s
            elif request.keeps_kv and not math.isnan(finished_s):
                over |= not math.isinf(self._sent_s(0))
            if request.keeps_kv and over:
                self._driver.release(request)
            if not request.keeps_kv or request.failed or request.cancelled:
                del self._kept[request]
                if self._holders.get(name) is request:
                    del self._holders[name]
        self._sweeping = bool(self._kept)
        if self._sweeping:
            loop.call_later(self._sweep_s, self._sweep)

    async def _holder(self, name: _Name, handoff: Handoff, exchange: HttpExchange) -> Request | None:
        """Return the request whose KV has this name; None: the prompt is to be computed."""
        if handoff.elsewhere and name not in self._holders:
            return self._elsewhere(handoff.elsewhere)
        if handoff.awaited and name not in self._holders and name not in self._waiting:
            await self._comes(name)
        request = self._holders.pop(name, None)
        if request is not None and request.keeps_kv and not (request.failed or request.cancelled):
            return request
        if self._recompute:
            return None
        raise errors.no_remote_kv(str(name[1]))

    async def _comes(self, name: _Name) -> None:
        """Return when the other half has come, or has not come in time."""
        waiting = self._waiting[name] = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait_for(waiting, self._timeout_here_s)
        except TimeoutError:
            pass
        finally:
            self._waiting.pop(name, None)

    def _elsewhere(self, engine: str) -> Request:
        """Return what stands for a request of another process: its KV is there, and comes over a link of that engine."""
        holder = Request(-1, None, None)
        holder.instance = -2 - sum(engine.encode()) % _ELSEWHERE
        return holder

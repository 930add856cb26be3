"""Carries plans out. With play_engines.py all that the golden files know of the product: a rewrite may change these alone.

- Engine plans: see play_engines.py.
- Run plans: `RunOptions`, `Session` and its kin, the loaders of workload files; `simulate` via the engine, over a cluster
  that follows every sequence (`per_sequence`) and over its own (`default`), and via the API (`protocol`).
- Script plans: `Runner` with a `Target` of our own, on a loop of virtual time.
"""

import asyncio
import hashlib
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from play_engines import cluster_of, config_of, ids_of, play_engine
from stored import Row, packed

from llmirage_client.load.options import RunOptions, Share
from llmirage_client.load.runner import Runner
from llmirage_client.measure.record import Exchange, Record, RequestError, RunResult
from llmirage_client.simulate import simulation
from llmirage_client.simulate.simulation import SimulationError, Via, simulate
from llmirage_client.simulator import in_process
from llmirage_client.targets.target import Call
from llmirage_client.targets.wire_json import encode_body
from llmirage_client.workload.rates import RateSeries
from llmirage_client.workload.registry import load
from llmirage_client.workload.session import Branch, Round, Session, SyntheticUser, ThinkTime, TokenSpec, Turn, Workload
from llmirage_shared import virtual_time
from llmirage_shared.standstill import StandstillError, VirtualDeadlockError

WAYS = {  # by family; the first is the one that is recorded
    "engine": ("per_sequence", "default"),
    "run": ("per_sequence", "default", "protocol"),
    "script": ("tasks",),
}


def ways_of(family: str, name: str) -> dict[str, Callable[[Row], Row]]:
    """The ways of a plan, each as a function from the plan to its outcome."""
    play = {"engine": play_engine, "run": play_run, "script": play_script}[family]
    api = name.startswith("protocol")  # the plans that have to come out the same through the server's API, too
    return {way: partial(play, way=way) for way in WAYS[family] if way != "protocol" or api}


# --- run plans ---------------------------------------------------------------------------------------------------------


def play_run(row: Row, way: str) -> Row:
    """Runs a workload on a cluster in virtual time: over instances step by step, by default, or through the API."""
    workload, options = workload_of(row["workload"]), options_of(row["options"])
    config, max_time_s = config_of(row["cluster"]), row.get("max_time_s")
    via: Via = "api" if way == "protocol" else "engine"
    with pytest.MonkeyPatch.context() as patch:
        if way == "per_sequence":
            for module in (simulation, in_process):
                patch.setattr(module, "new_cluster", lambda _, **__: cluster_of(row["cluster"], per_sequence=True))
        try:
            result = simulate(config, workload, options, via=via, max_time_s=max_time_s).result
        except SimulationError:
            return {"name": row["name"], "requests": [], "stands_still": True}
    return _run_told(row["name"], result)


def options_of(given: Mapping[str, Any]) -> RunOptions:
    values = dict(given)
    if series := values.get("request_rate_series"):
        values["request_rate_series"] = RateSeries(tuple((time_s, rate) for time_s, rate in series))
    if share := values.get("share"):
        values["share"] = Share(*share)
    return RunOptions(**({"seed": 0} | values))


def workload_of(given: Mapping[str, Any]) -> Workload:
    """From a file's text, or from sessions; see `_session`."""
    if text := given.get("text"):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "workload.jsonl"
            path.write_text(text)
            return load(str(path), given["format"], given.get("options", {}), {})
    sessions = {name: _session(name, fields) for name, fields in given["sessions"].items()}
    return Workload("made", "made", sessions, tuple(given["roots"]))


def _session(name: str, given: Mapping[str, Any]) -> Session:
    think_time = given.get("think_time")
    return Session(
        name,
        tuple(_turn(name, index, turn) for index, turn in enumerate(given.get("turns", ()))),
        mode=given.get("mode", "tokens"),
        arrival_s=given.get("arrival"),
        pre_session_spawns=tuple(given.get("before", ())),
        rounds=tuple(
            Round(tuple(round_["children"]), round_.get("think", 0.0), round_.get("awaited", True))
            for round_ in given.get("rounds", ())
        ),
        think_time=think_time and ThinkTime(*think_time),
        ends_on_failure=given.get("ends_on_failure", False),
    )


def _turn(name: str, index: int, given: Mapping[str, Any]) -> Turn:
    tokens = None
    if "in" in given:
        ids = ids_of(given["ids"]) if "ids" in given else None
        tokens = TokenSpec(given["in"], given["out"], ids)
    synthetic = None
    if asked := given.get("synthetic"):
        blocks = np.array(asked["blocks"], dtype=np.int64) if "blocks" in asked else None
        synthetic = SyntheticUser(
            asked["tokens"], asked["key"], asked.get("prefix", 0), blocks, asked.get("block_tokens", 0)
        )
    branches = tuple(
        Branch(f"{name}:{index}:{place}", kind, tuple(children), join_at, background)
        for place, (kind, children, join_at, background) in enumerate(given.get("branches", ()))
    )
    return Turn(
        tuple(given.get("messages", ())),
        given.get("payload"),
        tokens,
        given.get("model"),
        given.get("max_tokens"),
        delay_s=given.get("delay", 0.0),
        branches=branches,
        synthetic=synthetic,
        arrival_s=given.get("arrival"),
    )


def _run_told(name: str, result: RunResult) -> Row:
    reason = result.cancel_reason or ""
    unfinished = [int(found[1]) for note in result.notes if (found := re.match(r"(\d+) conversations? w\w+ left", note))]
    stats = result.branch_stats
    return {
        "name": name,
        "requests": in_order([_record_told(record) for record in result.records]),
        "times_s": [result.start_s, result.end_s],
        "cancelled": result.cancelled,
        "failed_fast": next(iter(re.findall(r"'(.*)'", reason)), None),
        "left_unfinished": sum(unfinished),
        "branches": stats and {key: value for key, value in asdict(stats).items() if value},
    }


def in_order(requests: list[Row]) -> list[Row]:
    """In order of completion. Of requests that are cancelled at one moment by number: a task group cancels in any order."""
    return [
        each
        for (state, _), alike in groupby(requests, key=lambda each: (each["state"], each["sent_s"][2]))
        for each in (sorted(alike, key=lambda each: each["id"]) if state.startswith("499") else alike)
    ]


def _record_told(record: Record) -> Row:
    exchange, error = record.exchange, record.exchange.error
    usage = exchange.usage if exchange.usage is not None and error is None else {}
    names = [record.request_id, record.correlation_id, record.root_correlation_id, record.parent_correlation_id]
    return {
        "id": f"{record.session_num}.{record.turn_index} of {record.conversation_id}",
        "phase": record.phase[0],
        "branch": [record.branch_mode, record.agent_depth, record.parent_turn_index, len(record.joined)],
        "asked": [record.input_tokens, record.output_tokens_asked],
        "state": "ok" if error is None else f"{error.code} {error.type}",
        "cancelled": record.cancelled,
        "usage": [
            usage.get("prompt_tokens"),
            usage.get("completion_tokens"),
            (usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
        ],
        "sent_s": [record.issued_s, exchange.start_s, exchange.end_s],
        "times_s": packed(exchange.token_s),
        "names": digest(repr([*names, *record.joined]).encode()),
    }


def digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=4).hexdigest()


# --- script plans ------------------------------------------------------------------------------------------------------


def play_script(row: Row, way: str) -> Row:
    """Runs a workload against an endpoint whose every reply takes as long as its turn's own label says, or fails."""
    workload, options = workload_of(row["workload"]), options_of(row["options"])
    target = _Script()

    async def main() -> RunResult:
        runner = Runner(workload, options, target)
        if (at_s := row.get("max_time_s")) is not None:
            asyncio.get_running_loop().call_at(at_s, runner.cancel, "it is time")
        return await runner.run()

    try:
        told = _run_told(row["name"], virtual_time.run(main()))
    except (VirtualDeadlockError, StandstillError):
        return {"name": row["name"], "requests": [], "stands_still": True}
    return told | {"sent": target.sent}


_LABEL = re.compile(rb"<(\w+ \d+) @([\d.]+)( FAIL)?>")


class _Script:
    """The last label in a request, `<name turn @seconds FAIL>`, is about its reply. sent: each request, and when."""

    def __init__(self) -> None:
        self.sent: list[list[Any]] = []

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def send(self, call: Call) -> Exchange:
        body = encode_body(call.body)
        label = list(_LABEL.finditer(body))[-1]
        whole = b"\n".join([call.path.encode(), *(f"{k}: {v}".encode() for k, v in sorted(call.headers.items())), body])
        self.sent.append([label[1].decode(), self.now(), len(body), digest(whole)])
        exchange = Exchange(start_s=self.now(), streamed=call.stream)
        if call.on_sent is not None:
            call.on_sent()
        await asyncio.sleep(float(label[2]))
        exchange.end_s = self.now()
        if label[3]:
            exchange.error = RequestError(500, "http_error", "as the script says")
        else:
            exchange.status = 200
            exchange.token_s = [exchange.end_s]
            exchange.message = {"role": "assistant", "content": f"reply to {label[1].decode()}"}
            exchange.response_id = f"response {label[1].decode()}"
        return exchange

    async def close(self) -> None: ...

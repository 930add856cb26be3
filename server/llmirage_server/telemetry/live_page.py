"""The content of the live page: the cluster that is simulated, its state now, and the requests that changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from llmirage_server.config import ClusterConfig
from llmirage_server.config.planning import ServedPool
from llmirage_server.http.faults import InjectedFaults
from llmirage_server.perf.steps.operations import StepShares
from llmirage_server.service.generation import ResponsesInProgress
from llmirage_server.telemetry.journal import Journal, JournalEntry
from llmirage_shared import pages
from llmirage_shared.plural import plural

SHOWN_REQUESTS = 100


@cache
def live_page() -> bytes:
    """Return the page in UTF-8. It calls this server and nothing else."""
    body = _read("page.html").replace("@THEME@", pages.THEME_BUTTON)
    return pages.document("llmirage", body, _read("page.css"), _read("page.js"), connect="'self'").encode()


def _read(name: str) -> str:
    return files(__package__).joinpath("page", name).read_text(encoding="utf-8")


class LiveCluster:
    """The parts of the server that the page looks at. Reading them changes nothing."""

    def __init__(
        self,
        config: ClusterConfig,
        pools: Sequence[ServedPool],
        journal: Journal,
        faults: InjectedFaults,
        responses: ResponsesInProgress,
    ) -> None:
        self.journal = journal
        self._faults = faults
        self._config = config
        self._pools = pools
        self._pool_of = [pool for pool in pools for _ in range(pool.config.instances)]
        self._responses = responses
        self._steps = StepShares()
        self._looked_into = 0

    def facts(self) -> dict[str, Any]:
        """Return the constant part: names of the served models, and the rest in words, by heading."""
        words: dict[str, str] = {}
        for pool in self._pools:
            several, deployment = len(self._pools) > 1, pool.deployment
            instances = plural(pool.config.instances, "instance")
            role = "" if pool.config.role == "both" else f", {pool.config.role} only"
            words[f"pool {pool.config.name}" if several else "cluster"] = f"{instances} of {deployment.describe()}{role}"
            title = f"engine of {pool.config.name}" if several else "engine"
            words[title] = (
                f"{deployment.engine.title}, {pool.kv_blocks}, {pool.limits.kv_capacity_tokens:,} tokens of KV on each "
                f"instance, at most {pool.max_model_len:,} tokens per request"
            )
            if pool.assumptions:
                words[f"assumed for {pool.config.name}" if several else "assumed"] = "; ".join(pool.assumptions.values())
        words["router"] = self._config.router
        script = "a rule of the script that fits, else " if self._config.script else ""
        words["replies"] = f"{script}tool rules, else {self._config.replies}" if not self._config.replay else "recordings"
        return {"models": list(dict.fromkeys(name for pool in self._pools for name in pool.names)), "facts": words}

    def now(self, at_s: float) -> dict[str, Any]:
        """Return the state of the cluster. at_s: the present, seconds on any clock. Counters only grow."""
        snapshots = self._responses.driver.snapshot()
        self._look_into_step()
        speed = self._responses.driver.speed
        return {
            "at_s": at_s,
            "speed": "max" if speed == math.inf else speed,
            "totals": {
                "tokens": self._responses.metrics.generated_tokens
                + sum([request.produced for request in self._responses.requests()]),
                "requests": self.journal.last,
            },
            "instances": [
                {
                    "index": one.index,
                    "pool": one.pool if len(self._pools) > 1 else "",
                    "state": one.state,
                    "running": one.running,
                    "waiting": one.waiting,
                    "most": pool.limits.max_num_seqs * pool.deployment.parallel.dp,
                    "kv_used": one.kv_used_tokens,
                    "kv_cached": one.cached_tokens,
                    "kv_total": one.kv_total_tokens,
                    "hit_tokens": one.prefix_hit_tokens,
                    "query_tokens": one.prefix_query_tokens,
                    "preemptions": one.preemptions,
                }
                for one, pool in zip(snapshots, self._pool_of, strict=True)
            ],
            "scaling": [
                f"{name}: {one.desired} of {one.current} instances wanted, {one.reason}"
                for name, one in self._responses.driver.cluster.scaling.latest.items()
            ],
            "step_shares": self._steps.shares(),
            "faults": [rule.shown() for rule in self._faults.rules],
        }

    def _look_into_step(self) -> None:
        """Take the step under way on one instance apart, each time of another one."""
        for _ in self._pool_of:
            index = self._looked_into % len(self._pool_of)
            self._looked_into += 1
            if self._steps.look(self._pool_of[index].step_model, self._responses.driver.cluster.batches(index)):
                return


class Watch:
    """One reader of the page: knows which requests the reader has seen."""

    def __init__(self, cluster: LiveCluster) -> None:
        self._cluster = cluster
        self._running: list[JournalEntry] = []
        self._unread: list[JournalEntry] = []  # shown while the server had not read their bodies yet
        self._last: int | None = None

    def next(self, at_s: float) -> dict[str, Any]:
        """Return the state now; the first one has the facts and the last requests, the others only what is new of requests.

        A request comes when it arrives, when its body has been read, and when it ends.

        at_s: as `LiveCluster.now` has it.
        """
        state = self._cluster.now(at_s)
        if self._last is None:
            state["server"] = self._cluster.facts()
        entries = self._cluster.journal.found({}, None, SHOWN_REQUESTS)
        fresh = [entry for entry in entries if self._last is None or entry.number > self._last]
        ended = [entry for entry in self._running if entry.outcome != "running"]
        self._running = [entry for entry in [*self._running, *fresh] if entry.outcome == "running"]
        read = [entry for entry in self._unread if entry.served and entry.outcome == "running"]
        self._unread = [entry for entry in self._running if not entry.served]
        self._last = self._cluster.journal.last
        state["requests"] = [entry.shown() for entry in (*ended, *read, *fresh)]
        return state

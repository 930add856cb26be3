"""Conversations on servers that cache prefixes, rebuilt from what is known of them and served by the whole engine.

tau: gpt-oss-120b on one H200 replayed tau-bench (GloriaXimingLu/inferencex-profiling@237385b). A conversation has two
streams, the agent's and the simulated user's: a system prompt that all conversations share, then a history that only
grows. What the model said is not what the next prompt contains: its tokens were made up, and are new ones of the prompt.
qwen36: Qwen3.6-35B-A3B on an H100 PCIe (anud18/qwen36-vllm-aiperf-benchmark), with the lengths of its data sets.
In both a client is a closed loop over conversations, the requests of each strictly in turn.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from accuracy import engine
from accuracy.csv_files import read_csv, write_csv
from accuracy.runs import DATA
from llmirage_server.cluster.cluster import Cluster
from llmirage_server.cluster.request import Request
from llmirage_server.perf.deployment import Deployment

WORKLOADS = DATA / "agent_workloads.csv.gz"
CLIENTS, BANKING_CLIENTS = 64, 4  # of rows without a record of the client's, like the others of their kind
CALLS = {"airline": 12.5, "retail": 14.0, "telecom": 20.0}  # of a conversation: requests of the runs / 200 conversations
OTHER_CALLS = 20.0
# Mean prompt of all conversations, of which a part was served: `ideal_hit` is theirs (nebius/results_tau/tau_table.tsv).
WHOLE_PROMPT_TOKENS = {
    "tau banking_knowledge claude-opus-4-5": 22147,
    "tau banking_knowledge gemini-3-pro": 36109,
    "tau banking_knowledge gpt-5-2": 61657,
    "tau banking_knowledge qwen3.5-397b-a17b-think": 16895,
}
DOCUMENT_SPREAD = 1.5  # of the logarithm of new tokens, by the server's histograms, where calls bring documents
EMPTY_THOUGHT = 4  # tokens
WARMUP = 16  # requests (scripts/run_nvfp4.sh)
SHORT_SYSTEM = 400  # tokens of the simulated user's system prompt

# Of the public scripts (nebius/tau_lib.sh) and of the file's columns.
TAU: dict[str, Any] = {
    "model": "openai/gpt-oss-120b",
    "gpu": "h200_sxm",
    "engine": "vllm@0.22",
    "weights": "mxfp4",
    "moe_backend": "marlin",
    "max_num_seqs": 256,
    "max_num_batched_tokens": 8192,
    "gpu_memory_utilization": 0.92,
}
QWEN: dict[str, Any] = {
    "model": "Qwen/Qwen3.6-35B-A3B",
    "gpu": "h100_pcie",
    "engine": "vllm@0.24",
    "weights": "nvfp4",
    "max_num_seqs": 32,
    "max_num_batched_tokens": 32768,
    "gpu_memory_utilization": 0.9,
}

TokenIds = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class AgentRun:
    """One measured run; times are means over the requests, but for the median that the client saw. NaN: not measured."""

    family: str  # tau or qwen36
    workload: str
    clients: int
    requests: int
    hit: float
    ttft_ms: float
    ttft_p50_ms: float
    tpot_ms: float
    source_model: str = ""
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    output_spread: float = 0.0  # standard deviation of the logarithm of a reply's tokens
    ideal_hit: float = 0.0  # share of prompt tokens that an earlier prompt of the workload had

    @property
    def name(self) -> str:
        return " ".join(filter(None, (self.family, self.workload, self.source_model)))


@dataclass(frozen=True, slots=True)
class AgentPrediction:
    run: AgentRun
    hit: float
    ttft_ms: float
    ttft_p50_ms: float
    tpot_ms: float

    def error(self, metric: str) -> float:
        """Relative error of a time; of `hit` the difference."""
        predicted, measured = getattr(self, metric), getattr(self.run, metric)
        return float(predicted - measured if metric == "hit" else predicted / measured - 1)


def read_agents(folder: Path) -> list[AgentRun]:
    """The runs in gptoss120b_h200_tau.csv and, of those in qwen36_rtx5090_gb10.csv, the closed loops of a GPU we know."""
    return [*_tau(folder / "gptoss120b_h200_tau.csv"), *_qwen(folder / "qwen36_rtx5090_gb10.csv")]


def _tau(path: Path) -> Iterator[AgentRun]:
    for row in read_csv(path):
        banking = row["workload"].startswith("banking")
        p50, p95 = (float(row[f"e2e_p{p}_ms"] or "nan") for p in (50, 95))
        spread = math.log(p95 / p50) / 1.645 if p50 > 0 else 1.0  # as log-normal lengths of replies have it
        yield AgentRun(
            family="tau",
            workload=row["workload"],
            source_model=row["source_model"],
            clients=int(row["client_concurrency"] or (BANKING_CLIENTS if banking else CLIENTS)),
            requests=int(row["server_requests"]),
            prompt_tokens=float(row["prompt_tokens_mean"]),
            output_tokens=float(row["output_tokens_mean"]),
            output_spread=round(spread, 2),
            ideal_hit=float(row["ideal_hit"]),
            hit=float(row["prefix_hit"]),
            ttft_ms=float(row["server_ttft_ms"]),
            ttft_p50_ms=float(row["ttft_p50_ms"] or "nan"),
            tpot_ms=float(row["server_itl_ms"]),
        )


def _qwen(path: Path) -> Iterator[AgentRun]:
    for row in read_csv(path):
        if (
            row["hardware"] == "h100_pcie"
            and row["load"] == "closed"
            and row["workload"] in ("chatbot", "agent", "toolagent")
        ):
            yield AgentRun(
                family="qwen36",
                workload=row["workload"],
                clients=int(row["concurrency"]),
                requests=int(row["requests"]),
                hit=float(row["prefix_hit_pct"]) / 100,
                ttft_ms=float(row["ttft_mean_ms"]),
                ttft_p50_ms=float(row["ttft_p50_ms"]),
                tpot_ms=float(row["tpot_mean_ms"]),
            )


def save_agents(path: Path, runs: Iterable[AgentRun]) -> None:
    """Write runs as `read_as` reads them."""
    write_csv(path, [field.name for field in fields(AgentRun)], map(astuple, runs))


def predict(run: AgentRun) -> AgentPrediction:
    """Serve the run by our engine."""
    cluster = engine.cluster_of(Deployment.create(**(TAU if run.family == "tau" else QWEN)), prefix_caching=True)
    warmup: list[Request] = []
    if run.family == "tau":
        served = play(cluster, tau_conversations(run), run.clients, run.requests)
    else:  # conversations that the warm-up has begun are not gone on with
        conversations = qwen_conversations(run)
        warmup = play(cluster, conversations, run.clients, WARMUP)
        done = max(request.finished_s for request in warmup)
        served = play(cluster, conversations, run.clients, run.requests, done)
    ttft = np.array([request.first_token_s - request.arrival_s for request in served]) * 1e3
    gaps = [((request.finished_s - request.first_token_s) * 1e3, request.output_tokens - 1) for request in served]
    if run.family == "tau":  # a histogram of the server's over tokens; the other's client has means over requests
        tpot = sum(gap for gap, _ in gaps) / sum(tokens for _, tokens in gaps)
    else:
        tpot = float(np.mean([gap / tokens for gap, tokens in gaps if tokens]))
    counted = [*warmup, *served]  # as the server counts
    hit = sum(request.cached_tokens for request in counted) / sum(request.prompt_tokens for request in counted)
    return AgentPrediction(run, hit, float(ttft.mean()), float(np.median(ttft)), tpot)


def play(cluster: Cluster, coming: Iterator[list[Request]], clients: int, most: int, start: float = 0.0) -> list[Request]:
    """Serve conversations, so many at once, the requests of each one after the other, at most so many; return them."""
    served: list[Request] = []
    rest: dict[Request, Iterator[Request]] = {}

    def go_on(calls: Iterator[Request], now: float) -> None:
        if len(served) == most:
            return
        while (request := next(calls, None)) is None:
            if (conversation := next(coming, None)) is None:
                return
            calls = iter(conversation)
        rest[request] = calls
        served.append(request)
        cluster.submit(request, now)

    for _ in range(clients):
        go_on(iter(()), start)
    while (now := cluster.next_event_time()) < math.inf:
        for end in cluster.advance(now):
            for request in end.emitted:
                if request.produced == request.output_tokens:
                    go_on(rest.pop(request), end.time_s)
    return served


def tau_conversations(run: AgentRun) -> Iterator[list[Request]]:
    """Conversations whose calls have the run's mean prompt, new tokens and reply; see `new_tokens` for their lengths."""
    rng = random.Random(0)
    calls = CALLS.get(run.workload, OTHER_CALLS)
    new = WHOLE_PROMPT_TOKENS.get(run.name, run.prompt_tokens) * (1 - run.ideal_hit)
    history = new * (calls / 2 + 1) / 2  # mean over the calls of a stream
    system = max(2 * SHORT_SYSTEM, 2 * (run.prompt_tokens - history))
    sizes = new_tokens(run, new)
    rng.shuffle(sizes)
    at, made = 0, 0
    systems = []
    for size in (int(system - SHORT_SYSTEM), SHORT_SYSTEM):
        systems.append(_fresh(at, size))
        at += size
    while made < run.requests:
        count = min(max(1, round(rng.gauss(calls, calls / 3))), run.requests - made)
        streams, requests = list(systems), []
        for i in range(count):
            added = 1 + int(sizes[made + i])
            answer = max(2, int(run.output_tokens * math.exp(rng.gauss(-(run.output_spread**2) / 2, run.output_spread))))
            streams[i % 2] = np.concatenate([streams[i % 2], _fresh(at, added)])
            requests.append(Request(made + i, streams[i % 2], _fresh(at + added, answer)))
            at += added + answer
        made += count
        yield requests


def new_tokens(run: AgentRun, mean: float) -> list[float]:
    """Of all calls, in order: as an exponential distribution has them; a log-normal one where some calls bring documents."""
    shares = [(i + 0.5) / run.requests for i in range(run.requests)]
    if run.workload.startswith("banking"):
        logs = NormalDist(-(DOCUMENT_SPREAD**2) / 2, DOCUMENT_SPREAD)
        return [mean * math.exp(logs.inv_cdf(share)) for share in shares]
    return [-mean * math.log(1 - share) for share in shares]


def qwen_conversations(run: AgentRun) -> Iterator[list[Request]]:
    """The data set's conversations; some begin with what others do.

    A prompt repeats the one before it up to where its reply began: Qwen's chat template opens a reply with an empty thought
    where thinking is off, and leaves it out of the history.
    """
    rows = [row for row in read_csv(WORKLOADS) if row["workload"] == run.workload]
    conversations: dict[str, list[Request]] = defaultdict(list)
    beginnings: dict[str, TokenIds] = {}
    at = 0
    for i, row in enumerate(rows):
        size, answer = int(row["prompt_tokens"]), int(row["output_tokens"])
        before = conversations[row["conversation"]]
        known = before[-1].prompt[:-EMPTY_THOUGHT][:size] if before else beginnings.get(row["shared"], _fresh(0, 0))
        ids = np.concatenate([known, _fresh(at, size - len(known) + answer)])
        at += len(ids)
        if row["shared"]:
            beginnings.setdefault(row["shared"], ids[: int(row["shared_tokens"])])
        before.append(Request(i, ids[:size], ids[size:]))
    yield from conversations.values()


def _fresh(first: int, count: int) -> TokenIds:
    return np.arange(first, first + count, dtype=np.int32)

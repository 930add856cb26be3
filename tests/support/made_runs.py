"""Runs made up for tests of reports: every time in them is known."""

import random
from typing import Any

from llmirage_client.measure.record import Exchange, Record, RequestError, RunResult


def record(
    conversation: str = "talk",
    turn: int = 0,
    start_s: float = 0.0,
    *,
    ttft_s: float = 0.1,
    tpot_s: float = 0.01,
    tokens: int = 11,
    prompt: int = 100,
    cached: int | None = 50,
    error: RequestError | None = None,
    cancelled: bool = False,
    root: str | None = None,
    parent: str | None = None,
    mode: Any = "root",
    parent_turn: int | None = None,
    joined: tuple[str, ...] = (),
    depth: int = 0,
) -> Record:
    """A streamed request of `tokens` content events; its conversation's id is its correlation id too."""
    stamps = [start_s + ttft_s + i * tpot_s for i in range(tokens)] if error is None else []
    usage: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": tokens}
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    exchange = Exchange(
        start_s=start_s,
        end_s=stamps[-1] if stamps else start_s + ttft_s,
        token_s=stamps,
        first_output_s=stamps[0] if stamps else None,
        streamed=True,
        usage=usage if error is None else None,
        error=error,
    )
    names = f"{conversation}/{turn}", conversation, root or conversation, parent
    branch: dict[str, Any] = {"branch_mode": mode, "parent_turn_index": parent_turn, "joined": joined}
    return Record(0, conversation, turn, *names, depth, start_s, exchange, cancelled=cancelled, **branch)


def run(records: list[Record], **settings: Any) -> RunResult:
    """The run of these records; settings replace fields of the RunResult."""
    end_s = max((r.exchange.end_s or 0.0 for r in records), default=1.0)
    known: dict[str, Any] = {
        "branch_stats": None,
        "start_s": 0.0,
        "end_s": end_s,
        "start_unix_s": 1_700_000_000.0,
        "model": "a-model",
        "url": "http://localhost:8000/v1",
        "workload_path": "bundled:some",
        "workload_format": "dag_jsonl",
        "options": {"concurrency": 4},
        "client_cpu_s": 0.01,
        "client_lag_s": (0.0001,) * 20,
    }
    return RunResult(records, **(known | settings))


def family() -> list[Record]:
    """A parent of three turns: its first spawns two that its second waits for, its second forks one nobody waits for."""
    root = {"root": "lead", "depth": 1}
    return [
        record("lead", 0, 0.0),
        record("scout-a", 0, 0.25, parent="lead", mode="spawn", parent_turn=0, **root),
        record("scout-b", 0, 0.25, parent="lead", mode="spawn", parent_turn=0, **root),
        record("scout-b", 1, 0.5, parent="lead", mode="spawn", parent_turn=0, **root),
        record("lead", 1, 1.0, joined=("scout-a", "scout-b")),
        record("draft", 0, 1.5, parent="lead", mode="fork", parent_turn=1, **root),
        record("lead", 2, 2.0),
    ]


def many(conversations: int, turns: int, seed: int = 0, tokens: int = 20) -> list[Record]:
    """Plain conversations with lengths and times that vary, every 50th request failing."""
    rng = random.Random(seed)
    records = []
    for number in range(conversations):
        at = rng.uniform(0, conversations * 0.2)
        for turn in range(turns):
            failed = RequestError(503, "overloaded", "try later") if rng.random() < 0.02 else None
            one = record(
                f"talk-{number:05}",
                turn,
                at,
                ttft_s=rng.lognormvariate(-2, 0.6),
                tpot_s=rng.uniform(0.005, 0.02),
                tokens=rng.randint(2, tokens),
                prompt=rng.randint(100, 9000),
                cached=rng.randint(0, 90),
                error=failed,
            )
            records.append(one)
            at = (one.exchange.end_s or at) + rng.expovariate(1.0)
    return records

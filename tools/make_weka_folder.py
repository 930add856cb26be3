"""Write a folder of synthetic WEKA traces of a given size, to test loading and replay: make_weka_folder.py OUT --mb 1000."""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

BLOCK_TOKENS = 64
START_BLOCKS, MOST_BLOCKS = 250, 1500


class _Ids:
    """Hands out block ids of one trace."""

    def __init__(self) -> None:
        self.next = 1

    def take(self, count: int) -> list[int]:
        self.next += count
        return list(range(self.next - count, self.next))


def agent(draw: random.Random, ids: _Ids, shared: list[int], start_s: float, turns: int) -> list[dict[str, Any]]:
    """Requests of one agent whose context grows, and is cut to what all agents share when it is full."""
    context = shared + ids.take(draw.randint(1, 50))
    requests = []
    now_s = start_s
    for _ in range(turns):
        api_s = round(draw.uniform(0.5, 8), 2)
        requests.append(
            {
                "t": round(now_s, 3), "type": "n", "model": "synthetic",
                "in": len(context) * BLOCK_TOKENS + draw.randint(0, BLOCK_TOKENS - 1), "out": draw.randint(20, 900),
                "hash_ids": context, "api_time": api_s,
            }
        )  # fmt: skip
        now_s += api_s + draw.expovariate(1 / 5)
        more = ids.take(draw.randint(1, 25))
        context = shared + more if len(context) > MOST_BLOCKS else context + more
    return requests


def trace(draw: random.Random, name: str) -> dict[str, Any]:
    ids = _Ids()
    shared = ids.take(START_BLOCKS)
    requests: list[dict[str, Any]] = []
    for request in agent(draw, ids, shared, 0.0, draw.randint(20, 120)):
        requests.append(request)
        if draw.random() < 0.05:
            start_s = request["t"] + request["api_time"]
            inner = agent(draw, ids, shared[: START_BLOCKS // 2], start_s, draw.randint(2, 20))
            end_s = inner[-1]["t"] + inner[-1]["api_time"]
            requests.append(
                {"t": start_s, "type": "subagent", "agent_id": f"a{len(requests)}", "status": "completed",
                 "duration_ms": round((end_s - start_s) * 1e3, 1), "requests": inner}
            )  # fmt: skip
    return {
        "id": name, "models": ["synthetic"], "block_size": BLOCK_TOKENS, "hash_id_scope": "local", "requests": requests
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--mb", type=float, default=1000.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    draw = random.Random(given.seed)
    written = number = 0
    while written < given.mb * 1e6:
        name = f"trace_{number:05}"
        written += (given.out / f"{name}.json").write_text(json.dumps(trace(draw, name), separators=(",", ":")))
        number += 1
    print(f"{number} traces, {written / 1e6:.0f} MB")


if __name__ == "__main__":
    main()

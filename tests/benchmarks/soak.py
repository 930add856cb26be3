"""A server under load for minutes: what it holds stays flat, and nothing is left when the load has gone.

    python tests/benchmarks/soak.py [--minutes 5] [--streams 200]          (make soak)

Streams of five APIs; a quarter of the responses are stored, a fifth of the clients leave in the middle. Exit status 1 if
the resident memory grows by more than 5 % after the warm-up, a request fails inside the server, or any is left. The warm-up
ends when what the server keeps up to a limit (stored responses, tokenized texts) no longer grows, at the latest after five
minutes or a third of the run, for slow machines; in a run that is too short for that, after two fifths of it. Linux only.
"""

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

SERVE = [sys.executable, "-c", "from llmirage_server.commands.serve import serve; serve()", "--port", "0"]
MOST_GROWTH = 0.05
WORDS = (
    "the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "seven", "wizards", "box", "in", "Oslo",
)  # fmt: skip
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}
SAMPLE_S = 2.0
MOST_WARM_UP_MIN = 5.0
FULL = 1.001  # what is full still changes by less, as large entries come for small ones


class Load:
    """Clients that ask without a pause, each with a connection of its own."""

    def __init__(self, url: str, seed: int) -> None:
        self.url = url
        self.random = random.Random(seed)
        self.ended: Counter[str] = Counter()
        self.stored: list[str] = []

    def body(self) -> tuple[str, dict[str, Any]]:
        """A path, and a body that streams in four of five cases."""
        draw = self.random
        text = " ".join(draw.choices(WORDS, k=draw.choice((10, 100, 1000)))) + f" {draw.random()}"
        tokens = draw.randrange(5, 120)
        common = {"model": "any", "stream": draw.random() < 0.8, "ignore_eos": True}
        messages = [{"role": "user", "content": text}]
        stored = draw.random() < 0.25
        kind = draw.randrange(5)
        if kind == 0:
            tool = {"type": "function", "function": {"name": f"f{draw.randrange(10**6)}", "parameters": SCHEMA}}
            more = {"tools": [tool]} if draw.random() < 0.2 else {}
            return "/v1/chat/completions", {**common, "messages": messages, "max_tokens": tokens, "store": stored, **more}
        if kind == 1:
            return "/v1/completions", {**common, "prompt": text, "max_tokens": tokens}
        if kind == 2:
            more = {"previous_response_id": draw.choice(self.stored)} if self.stored and draw.random() < 0.3 else {}
            more |= {"background": True} if stored and draw.random() < 0.2 else {}
            return "/v1/responses", {**common, "input": text, "max_output_tokens": max(16, tokens), "store": stored, **more}
        if kind == 3:
            return "/v1/messages", {**common, "messages": messages, "max_tokens": tokens}
        return "/generate", {
            "text": text,
            "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True},
            "stream": common["stream"],
        }

    async def client(self, until_s: float) -> None:
        async with httpx.AsyncClient(base_url=self.url, timeout=120) as client:
            while time.monotonic() < until_s:
                await self.ask(client)

    async def ask(self, client: httpx.AsyncClient) -> None:
        path, body = self.body()
        leaves_after = self.random.randrange(1, 20) if self.random.random() < 0.2 else None
        try:
            async with client.stream("POST", path, json=body) as response:
                seen = 0
                text = ""
                async for line in response.aiter_lines():
                    seen += 1
                    text = text or line
                    if leaves_after is not None and seen > leaves_after:
                        self.ended["left"] += 1
                        return
                self.ended[str(response.status_code)] += 1
                if path == "/v1/responses" and body["store"] and (found := re.search(r"resp_\w+", text)):
                    self.stored = [*self.stored[-200:], found[0]]
        except httpx.HTTPError as error:
            self.ended[type(error).__name__] += 1


def resident_mib(process: int) -> float:
    status = Path(f"/proc/{process}/status").read_text("ascii")
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


async def sampled(url: str, process: int, until_s: float, minutes: float) -> tuple[list[float], int]:
    """The resident memory every two seconds, and at which of these the warm-up was over."""
    samples: list[float] = []
    warm, held = 0, 0.0
    most_warm_up = max(MOST_WARM_UP_MIN, minutes / 3)
    begun_s = time.monotonic()
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        while time.monotonic() < until_s:
            samples.append(resident_mib(process))
            if len(samples) % 15 == 0:
                passed = (time.monotonic() - begun_s) / 60
                sys.stdout.write(f"{passed:5.1f} of {minutes:g} min: {samples[-1]:.0f} MiB\n")
                sys.stdout.flush()
                before, held = held, sum(held_bytes((await client.get("/metrics")).text).values())
                if not warm and (passed >= most_warm_up or 0 < held < FULL * before):
                    warm = len(samples)
            await asyncio.sleep(SAMPLE_S)
    return samples, warm


def held_bytes(metrics: str) -> dict[str, float]:
    found = re.findall(r'^llmirage:held_bytes{holder="(.*)"} (\S+)$', metrics, re.MULTILINE)
    return {holder: float(size) for holder, size in found}


async def left_over(url: str) -> tuple[dict[str, float], float]:
    """Requests that the server still counts as running or waiting when nobody asks, and its internal errors."""
    async with httpx.AsyncClient(base_url=url) as client:
        for _ in range(150):
            text = (await client.get("/metrics")).text
            counts = {
                name: sum(float(value) for value in re.findall(rf"^vllm:{name}{{.*}} (\S+)$", text, re.MULTILINE))
                for name in ("num_requests_running", "num_requests_waiting")
            }
            counts["server_load"] = (await client.get("/load")).json()["server_load"]
            if not any(counts.values()):
                break
            await asyncio.sleep(0.2)
        held = held_bytes(text).items()
        sys.stdout.write("held: " + ", ".join(f"{holder} {size / 2**20:.1f} MiB" for holder, size in held) + "\n")
        [errors] = re.findall(r"^llmirage:internal_errors_total (\S+)$", text, re.MULTILINE)
        return counts, float(errors)


async def soak(url: str, process: int, minutes: float, streams: int, seed: int) -> int:
    until_s = time.monotonic() + 60 * minutes
    load = Load(url, seed)
    watched = asyncio.create_task(sampled(url, process, until_s, minutes))
    await asyncio.gather(*[load.client(until_s) for _ in range(streams)])
    samples, warm = await watched
    counts, errors = await left_over(url)
    warm = warm or int(0.4 * len(samples))
    before, after = samples[warm:][:5], samples[-5:]
    growth = sum(after) / len(after) / (sum(before) / len(before)) - 1
    sys.stdout.write(f"requests by how they ended: {json.dumps(dict(load.ended.most_common()))}\n")
    sys.stdout.write(f"left in the server: {json.dumps(counts)}; internal errors: {errors:g}\n")
    begun = f"after the warm-up of {warm * SAMPLE_S / 60:.1f} min"
    sys.stdout.write(f"resident: {before[0]:.0f} MiB {begun}, {after[-1]:.0f} MiB at the end, {growth:+.1%}\n")
    failed = [status for status in load.ended if status not in ("200", "left", "404", "400")]
    return int(growth > MOST_GROWTH or errors > 0 or any(counts.values()) or bool(failed))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("flags", nargs="*", help="options of llmirage serve, after --")
    options = parser.parse_args()
    command = [*SERVE, *options.flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        try:
            assert process.stdout is not None
            url = next(found[1] for line in process.stdout if (found := re.search(r"(http://\S+)/v1$", line)))
            return asyncio.run(soak(url, process.pid, options.minutes, options.streams, options.seed))
        finally:
            process.terminate()


if __name__ == "__main__":
    sys.exit(main())

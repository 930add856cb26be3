"""Attack a server and watch the streams of others: `make held-up`.

    make held-up                          # 300 attacks, one at a time, beside 8 streams
    make held-up ARGS="--attacks 1000 --at-once 4 --seed 7"
    make held-up ARGS="--attacks 60 --large 1"           # large bodies alone
    make held-up ARGS="--mutated --attacks 2000 --at-once 8"
    make held-up ARGS="--attacks 1 --mixtures 1000"      # mixtures of connections alone

A server in a process of its own serves streams of one token every 20 ms. For ten seconds nothing else happens: the largest
gap between two tokens of a stream then is what the machine itself causes. Then come the attacks of tests/support/attacks.py,
a tenth of them of large_bodies.py, or with --mutated those of valid_bodies.py, which are almost valid. All were written
before, so that this program is not what holds up the reading of streams. For root, the server and the streams go
before what else the machine does. Then come the mixtures of mixtures.py; the memory
of the server is looked at until a minute after them (Linux). At the end the server gets SIGTERM in the middle of attacks.
Printed are the times of the answers, the gaps with and without attacks, and the time until the server has ended.

Exit status: 1 when an answer took more than a second (to a large body, 20) or was not 200, 400, 404 or 413, when a gap
during attacks was over 100 ms (and over twice the largest one without), when the server took more than 400 MB in the
mixtures, or a minute after them 20 % more than before, or when it took more than five seconds to end. With --mutated, when
an answer was 500 or more, or when the p99 of the gaps was more than 5 ms above that without.
"""

import argparse
import asyncio
import contextlib
import json
import random
import re
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import attacks
import httpx
from large_bodies import large
from valid_bodies import mutated, valid_bodies

from held_up.mixtures import priority

QUIET_S = 10.0
MOST_ANSWER_S, MOST_LARGE_S, MOST_GAP_S, MOST_END_S, MOST_P99_S = 1.0, 20.0, 0.1, 5.0, 0.005
_CHUNK_BYTES = 1 << 18
ITL_MS = 20
PHASES = ("quiet", "attacked", "mixed")
_LARGE = "large "
MOST_RSS_BYTES, MOST_GROWTH, REST_S = 400_000_000, 1.2, 60.0
LAST = 200  # requests during which the server is ended
Prepared = tuple[str, bytes, str]  # path, body, what to call it


@dataclass
class Watched:
    """What was seen. gaps: seconds between two reads of a stream that brought tokens, by phase. answers: seconds, attack."""

    phase: str = "quiet"
    gaps: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in (*PHASES, "ending")})
    rss: list[int] = field(default_factory=list)  # bytes: before the mixtures, the most during them, and REST_S after them
    answers: list[tuple[float, str]] = field(default_factory=list)
    attack: str = ""  # the last one that was sent
    widest: dict[str, float] = field(default_factory=dict)  # seconds, by the attack
    largest: dict[str, int] = field(default_factory=dict)  # bytes of the server at most, by the mixture
    statuses: Counter[int] = field(default_factory=Counter)


async def stream(client: httpx.AsyncClient, watched: Watched) -> None:
    """Read one stream after the other."""
    body = {"model": attacks.MODEL, "messages": [{"role": "user", "content": "Go on"}], "stream": True, "max_tokens": 4000}
    while True:
        async with client.stream("POST", "/v1/chat/completions", json={**body, "ignore_eos": True}) as response:
            last_s = 0.0
            async for _ in response.aiter_raw():
                now_s = time.perf_counter()
                if last_s:
                    watched.gaps[watched.phase].append(now_s - last_s)
                    watched.widest[watched.attack] = max(watched.widest.get(watched.attack, 0.0), now_s - last_s)
                last_s = now_s


def prepared(rng: random.Random, count: int, is_mutated: bool, share: float = 0.0) -> Iterator[Prepared]:
    """Requests, with short replies: an answer in one piece comes when its last token has come."""
    valid = [(path, body) for path, body in valid_bodies() if not path.startswith("/llmirage/")]
    for _ in range(count):
        seed = rng.getrandbits(40)
        own = random.Random(seed)
        is_large = not is_mutated and own.random() < share
        if is_mutated:
            path, body = own.choice(valid)
            body = mutated(body, own)
        else:
            path, body = large(own) if is_large else attacks.attack(own)
        for name in ("max_tokens", "max_output_tokens"):
            wanted = body.get(name, 0 if name == "max_output_tokens" and path.endswith(("responses", "compact")) else None)
            if isinstance(wanted, int) and not (is_mutated and wanted < 10):
                body[name] = 16 if is_mutated else 10
        content = json.dumps(body).encode()
        yield path, content, f"{_LARGE if is_large else ''}{path} seed {seed} {len(content):,} bytes"


async def chunks(content: bytes) -> AsyncIterator[bytes]:
    """In parts, between which this program reads its streams."""
    for start in range(0, len(content), _CHUNK_BYTES):
        yield content[start : start + _CHUNK_BYTES]
        await asyncio.sleep(0)


async def send(client: httpx.AsyncClient, requests: Iterator[Prepared], watched: Watched) -> None:
    """Send requests one after the other."""
    for path, content, name in requests:
        watched.attack = name
        started_s = time.perf_counter()
        headers = {"content-type": "application/json", "content-length": str(len(content))}
        async with client.stream("POST", path, content=chunks(content), headers=headers) as response:
            async for _ in response.aiter_raw():
                pass
        elapsed_s = time.perf_counter() - started_s
        watched.answers.append((elapsed_s, f"{name} -> {response.status_code}"))
        watched.statuses[response.status_code] += 1


def rss_bytes(process: subprocess.Popen[str]) -> int:
    """Memory of the server now; 0 where the system does not tell."""
    try:
        return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


async def mix(url: str, process: subprocess.Popen[str], count: int, seed: int, watched: Watched) -> None:
    """Let another process send mixtures, and look at the server's memory."""
    place = httpx.URL(url)
    before = most = rss_bytes(process)
    words = [sys.executable, "-m", "held_up.mixtures", place.host, str(place.port), str(seed), str(count)]
    sender = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE)
    assert sender.stdout is not None
    watched.phase = "mixed"
    reading = asyncio.ensure_future(sender.stdout.readline())
    while True:
        done, _ = await asyncio.wait([reading], timeout=0.05)
        most = max(most, now := rss_bytes(process))
        watched.largest[watched.attack] = max(watched.largest.get(watched.attack, 0), now)
        if done:
            if not (line := reading.result()):
                break
            watched.attack = line.decode().strip()
            reading = asyncio.ensure_future(sender.stdout.readline())
    if await sender.wait():
        raise RuntimeError("the process that sends mixtures has failed")
    watched.phase = "ending"
    await asyncio.sleep(REST_S)
    if process.poll() is not None:
        raise RuntimeError(f"the server has ended with status {process.returncode}")
    watched.rss = [before, most, rss_bytes(process)]


async def watch(url: str, process: subprocess.Popen[str], options: argparse.Namespace) -> tuple[Watched, float]:
    """The whole run, and the seconds from SIGTERM to the end of the server."""
    watched, rng = Watched(), random.Random(options.seed)
    requests = list(prepared(rng, options.attacks, options.mutated, options.large))
    final = list(prepared(rng, LAST, options.mutated))
    async with (
        httpx.AsyncClient(base_url=url, timeout=60) as bystander,
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):
        streams = [asyncio.ensure_future(stream(bystander, watched)) for _ in range(options.streams)]
        await asyncio.sleep(QUIET_S)
        watched.phase = "attacked"
        waiting = iter(requests)
        await asyncio.gather(*[send(client, waiting, watched) for _ in range(options.at_once)])
        if options.mixtures:
            await mix(url, process, options.mixtures, options.seed, watched)
        watched.phase = "ending"
        last = [asyncio.ensure_future(send(client, iter(final[first::4]), Watched())) for first in range(4)]
        await asyncio.sleep(0.5)
        started_s = time.perf_counter()
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.wait)
        ended_s = time.perf_counter() - started_s
        for task in (*streams, *last):
            task.cancel()
        await asyncio.gather(*streams, *last, return_exceptions=True)
    return watched, ended_s


def report(watched: Watched, ended_s: float, is_mutated: bool) -> bool:
    """Print the figures; whether all are good."""
    answers = sorted(seconds for seconds, _ in watched.answers)
    print(
        f"{len(answers)} attacks: {', '.join(f'{count} x {status}' for status, count in sorted(watched.statuses.items()))}"
    )
    p99_s = answers[int(len(answers) * 0.99)]
    print(f"answer: median {statistics.median(answers):.3f} s, p99 {p99_s:.3f} s, max {answers[-1]:.3f} s")
    for seconds, what in sorted(watched.answers, reverse=True)[:5]:
        print(f"  {seconds:.3f} s {what}")
    gaps = {phase: sorted(found) for phase in PHASES if (found := watched.gaps[phase])}
    p99s = {phase: found[int(len(found) * 0.99)] for phase, found in gaps.items()}
    for phase, found in gaps.items():
        p999_ms, most_ms = found[int(len(found) * 0.999)] * 1000, found[-1] * 1000
        print(f"gap between tokens, {phase}: p99 {p99s[phase] * 1000:.1f} ms, p99.9 {p999_ms:.1f} ms, max {most_ms:.1f} ms")
    for attack, widest_s in sorted(watched.widest.items(), key=lambda each: -each[1])[:5]:
        print(f"  {widest_s * 1000:.1f} ms {attack}")
    if watched.rss:
        before, most, after = [count / 1e6 for count in watched.rss]
        print(f"memory of the server: {before:.0f} MB, {most:.0f} MB at most in mixtures, {after:.0f} MB {REST_S:g} s later")
        for attack, most_bytes in sorted(watched.largest.items(), key=lambda each: -each[1])[:5]:
            print(f"  {most_bytes / 1e6:.0f} MB {attack}")
    print(f"SIGTERM to the end of the server: {ended_s:.2f} s")
    if is_mutated:
        limits = {
            "a status of 500 or more": max(watched.statuses) < 500,
            f"p99 of gaps grew by more than {MOST_P99_S:g} s": p99s["attacked"] <= p99s["quiet"] + MOST_P99_S,
        }
    else:
        quiet_s, attacked_s = gaps["quiet"][-1], max([found[-1] for phase, found in gaps.items() if phase != "quiet"])
        before, most, after = watched.rss or (0, 0, 0)
        small = [took for took, what in watched.answers if not what.startswith(_LARGE)]
        limits = {
            "another status than 200, 400, 404, 413": set(watched.statuses) <= {200, 400, 404, 413},
            f"an answer to a small body took more than {MOST_ANSWER_S:g} s": max(small, default=0.0) <= MOST_ANSWER_S,
            f"an answer took more than {MOST_LARGE_S:g} s": answers[-1] <= MOST_LARGE_S,
            f"a gap of more than {MOST_GAP_S:g} s": attacked_s <= MOST_GAP_S or attacked_s <= 2 * quiet_s,
            f"more than {MOST_RSS_BYTES / 1e6:.0f} MB": most <= MOST_RSS_BYTES,
            f"more than {MOST_GROWTH:g} times the memory of the start at the end": after <= MOST_GROWTH * before,
        }
    limits[f"more than {MOST_END_S:g} s to end"] = ended_s <= MOST_END_S
    for limit, holds in limits.items():
        if not holds:
            print(f"missed: {limit}")
    return all(limits.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutated", action="store_true", help="almost valid bodies instead of attacks")
    parser.add_argument("--large", type=float, default=0.1, help="share of the attacks that are large bodies")
    parser.add_argument("--attacks", type=int, default=300)
    parser.add_argument("--mixtures", type=int, default=200, help="of connections that ask for memory or time")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    command = "from llmirage_server.commands.serve import serve; serve()"
    flags = ["--port", "0", "--ttft", "20", "--itl", str(ITL_MS)]
    with contextlib.suppress(OSError):
        priority(-20)
    process = subprocess.Popen([sys.executable, "-c", command, *flags], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    url = next(found.group(1) for line in process.stdout if (found := re.search(r"(http://\S+)/v1$", line)))
    try:
        watched, ended_s = asyncio.run(watch(url, process, options))
    finally:
        process.kill()
    return 0 if report(watched, ended_s, options.mutated) else 1


if __name__ == "__main__":
    sys.exit(main())

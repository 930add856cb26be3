"""Commands from their start to their end: CPU time of the whole process."""

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution

from bench.measurement import Cost, Work, children_cpu_s, limits, measures
from bench.processes import LLMIRAGE, Endpoint, Server


def command(times: int, *words: str) -> Work:
    def work(share: float) -> Cost:
        count = max(1, int(times * share))
        before_s = children_cpu_s()
        for _ in range(count):
            subprocess.run([*LLMIRAGE, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        return Cost(children_cpu_s() - before_s, count)

    return work


@measures("command")
def help() -> Iterator[Work]:
    """llmirage --help."""
    yield command(8, "--help")


@measures("command")
def simulate() -> Iterator[Work]:
    """llmirage simulate, 2000 requests of the standard job."""
    load = ["--isl", "2000", "--osl", "500", "--request-rate", "32", "--requests", "2000", "--json"]
    yield command(1, "simulate", *load, "--model", "meta-llama/Llama-3.1-8B", "--gpu", "h100_sxm", "--instances", "8")


@measures("command")
def size() -> Iterator[Work]:
    """llmirage size: deployments of Qwen3-8B on two GPUs for 8 requests a second, 300 requests each."""
    load = ["--isl", "1000", "--osl", "200", "--requests", "300", "--request-rate", "8", "--json"]
    yield command(1, "size", *load, "--model", "Qwen/Qwen3-8B", "--gpu", "h100_sxm,l40s", "--slo", "ttft_p99<2000ms")


@measures("command")
def serve() -> Iterator[Work]:
    """llmirage serve until it listens."""

    def work(share: float) -> Cost:
        before_s = children_cpu_s()
        with Server():
            pass
        return Cost(children_cpu_s() - before_s, 1)

    yield work


@measures("command")
def run() -> Iterator[Work]:
    """llmirage run, bundled:dag-example against an endpoint that answers at once: nearly all is start and report."""
    with Endpoint(chunks=16) as url, tempfile.TemporaryDirectory() as folder:
        words = [
            "run",
            "bundled:dag-example",
            "--url",
            url,
            "--model",
            "m",
            "--artifact-dir",
            f"{folder}/run",
            "--overwrite",
        ]
        yield command(1, *words)


@limits("MiB", 320)
def installed() -> float:
    """llmirage and everything it needs, as installed."""
    size = 0
    for name in needed_distributions():
        for file in distribution(name).files or []:
            path = str(file.locate())
            size += os.path.getsize(path) if os.path.exists(path) else 0
    return size / 2**20


def needed_distributions() -> set[str]:
    """llmirage and what it requires, by the metadata of what is installed here."""
    found: set[str] = set()
    pending = ["llmirage"]
    while pending:
        name = re.sub(r"[-_.]+", "-", pending.pop()).lower()
        try:
            requires = distribution(name).requires or []
        except PackageNotFoundError:  # for another platform
            continue
        if name not in found:
            found.add(name)
            pending += [re.split(r"[\s;<>=!~\[(]", text)[0] for text in requires if "extra ==" not in text]
    return found

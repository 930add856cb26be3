"""How long a user waits for the first sign of life, and how large an installation is.

    python tests/benchmarks/bench_startup.py            # medians of 5 starts; --check: exit 1 when a goal is missed

`--help`: CPU seconds. `serve`: from the command to the first answered /health. `run`: from the command to the first request
at the endpoint, for a workload of messages and for one of token ids. Size: what llmirage needs, without pip.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import PackageNotFoundError, distribution

LLMIRAGE = [sys.executable, "-m", "llmirage_client"]
MODELS = json.dumps({"object": "list", "data": [{"id": "m", "owned_by": "llmirage"}]}).encode()


def help_cpu_s() -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*LLMIRAGE, "--help"], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def health_s() -> float:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    start = time.monotonic()
    server = subprocess.Popen(
        [*LLMIRAGE, "serve", "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while time.monotonic() < start + 30:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                return time.monotonic() - start
            except urllib.error.URLError:
                time.sleep(0.01)
        raise TimeoutError("the server did not answer within 30 s")
    finally:
        server.terminate()
        server.wait()


def first_request_s(workload: str) -> float:
    """Seconds until a request of the workload arrives at an endpoint that then hangs."""
    arrived = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(MODELS)))
            self.end_headers()
            self.wfile.write(MODELS)

        def do_POST(self) -> None:
            arrived.set()
            self.close_connection = True

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as endpoint, tempfile.TemporaryDirectory() as folder:
        threading.Thread(target=endpoint.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        url = f"127.0.0.1:{endpoint.server_address[1]}"
        command = [*LLMIRAGE, "run", workload, "--url", url, "--no-fixed-schedule", "--artifact-dir", folder]
        start = time.monotonic()
        client = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            if not arrived.wait(30):
                raise TimeoutError("no request within 30 s")
            return time.monotonic() - start
        finally:
            client.kill()
            client.wait()
            endpoint.shutdown()


def needed_distributions() -> set[str]:
    """llmirage and everything it needs, by the metadata of what is installed here."""
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


def installed_mb() -> float:
    size = 0
    for name in needed_distributions():
        for file in distribution(name).files or []:
            path = file.locate()
            size += os.path.getsize(path) if os.path.exists(path) else 0
    return size / 2**20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    measures: list[tuple[str, Callable[[], float], float]] = [
        ("llmirage --help, CPU s", help_cpu_s, 0.4),
        ("serve to /health, s", health_s, 1.0),
        ("run to first request (messages), s", lambda: first_request_s("bundled:dag-example"), 1.0),
        ("run to first request (token ids), s", lambda: first_request_s("bundled:coding-agent"), 1.0),
    ]
    missed = False
    for name, measure, goal in measures:
        values = [measure() for _ in range(arguments.repetitions)]
        median = statistics.median(values)
        missed |= median > goal
        print(f"{name:38} median {median:5.2f}   min {min(values):5.2f}   max {max(values):5.2f}   goal {goal}")
    size = installed_mb()
    missed |= size > 320
    print(f"{'installed, MiB':38} {size:12.0f}{'':29} goal 320")
    return int(missed and arguments.check)


if __name__ == "__main__":
    sys.exit(main())

"""`llmirage serve`: its options. The work is done by http_server.py."""

# ruff: noqa: RUF009  what declares a setting is dataclasses.field with a fixed form of metadata

from __future__ import annotations

import re
from dataclasses import dataclass

from llmirage_server.cluster.kv.recorded_tree import VLLM_SEED, EventFormat, HashAlgorithm
from llmirage_server.config import ClusterConfig
from llmirage_server.config.cluster import BLOCKS, ELSEWHERE
from llmirage_server.config.instance import GROUPS
from llmirage_shared.command_line import command, options
from llmirage_shared.settings import switch, under

_SERVER = "Server"
_server = under(_SERVER)
ENVIRONMENT = "LLMIRAGE"  # the prefix of the variables that stand for options


def not_an_address(text: str) -> str | None:
    """Say why this is no HOST:PORT; None: it is one."""
    return None if re.fullmatch(r"(\[[\da-fA-F:]+\]|[^:/\s]+):\d{1,5}", text) else f"must be HOST:PORT, not {text!r}"


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """Where the server listens, and which cluster it imitates."""

    cluster_file: str | None = _server(
        None,
        "YAML file with settings and pools, or bundled:NAME; flags override it (docs/cluster-files.md).",
        spelled="cluster",
        metavar="FILE",
        usual=True,
    )
    host: str = _server("127.0.0.1", "Address to listen on.", usual=True)
    port: int = _server(8000, "Port to listen on; 0: any free port.", short="p", least=0, most=65535, usual=True)
    http_workers: int = _server(
        1, "Processes that answer HTTP, before one simulated cluster in a process of its own. Linux.",
        spelled="workers", flag=True, least=1, most=64,
    )  # fmt: skip
    fleet: bool = switch(
        _SERVER, "Listen on one more port for each instance, from the next one on; each serves as one engine.", flag=True
    )
    fleet_ranks: bool = switch(
        _SERVER, "A fleet has a port for each data-parallel rank, as with vLLM's --data-parallel-external-lb."
    )
    fleet_file: str | None = _server(
        None, "File to write the URLs of the fleet to, one a line.", metavar="FILE", unset="none"
    )
    discovery_address: str | None = _server(
        None,
        "Router to register prefill and decode engines with: vllm-router's --vllm-discovery-address.",
        metavar="HOST:PORT",
        check=not_an_address,
        unset="none",
    )
    kv_events_port: int | None = _server(
        None, "Port at which the first instance tells of its KV cache over ZeroMQ as vLLM does; the others follow.",
        unset="none", least=1, most=65535,
    )  # fmt: skip
    kv_events_replay_port: int | None = _server(
        None, "The same for the replays of KV events that were missed.", unset="none", least=1, most=65535
    )
    kv_events_topic: str = _server("", "Topic of KV events.")
    kv_events_format: EventFormat = _server("map", "Form of KV events: maps, as vLLM has them since 0.24, or arrays.")
    kv_events_hash: HashAlgorithm = _server("sha256", "Hash of blocks: vLLM's prefix_caching_hash_algo.")
    kv_events_seed: str = _server(VLLM_SEED, "Seed of these hashes: vLLM's PYTHONHASHSEED.")
    access_log: bool = switch(
        _SERVER,
        "Log each request when its response has ended: status, model, tokens, TTFT, the script's rule, the fault.",
        usual=True,
    )
    json: bool = switch(
        _SERVER, "Print JSON lines: what is served, when it is ready; how well times were kept, at the end.", flag=True
    )
    no_ui: bool = switch(_SERVER, "Serve no live page at /.")
    tls_cert: str | None = _server(
        None, "Certificate chain in PEM: the server speaks HTTPS.", metavar="FILE", unset="HTTP", flag=True
    )
    tls_key: str | None = _server(None, "Private key of --tls-cert in PEM.", metavar="FILE", flag=True)
    max_connections: int | None = _server(
        None, "Connections at once; more get 503.", unset="as many as the process may have files", least=1
    )
    shutdown_timeout_s: float = _server(
        0.0,
        "Time after SIGTERM in which responses may end by themselves; then they end with an error.",
        aliases=("shutdown_timeout",),
        least=0,
    )


serve = command(
    "serve",
    "llmirage_server.commands.http_server:serve",
    [
        *options(ServeSettings, environment=ENVIRONMENT),
        *options(ClusterConfig, checked=False, order=GROUPS, environment=ENVIRONMENT),
    ],
    """Start a simulated cluster behind an OpenAI-compatible API.

    Without arguments it serves Qwen3-30B-A3B-Instruct-2507 on two instances of one H100 each, at the speed of that hardware.

    Each setting may also be given as an environment variable: LLMIRAGE_PORT stands for --port, LLMIRAGE_API_KEY for
    --api-key (several values between spaces), LLMIRAGE_EXACT_LENGTH=1 for --exact-length. The command line wins over
    variables, and variables win over the cluster file.
    """,
    rest=_SERVER,
    blocks=BLOCKS,
    elsewhere=ELSEWHERE,
    examples=(
        "llmirage serve --model Qwen/Qwen3-32B --gpu h100_sxm --tp 2",
        "llmirage serve --ttft 200 --itl 20 --port 9000",
    ),
)

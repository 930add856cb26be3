"""What a person sees when the server starts and when it ends."""

from __future__ import annotations

import math

from llmirage_server.app import LlmirageApp
from llmirage_server.pacing import PacingSummary

EXAMPLE_PROMPT_TOKENS = 1000


def banner(app: LlmirageApp, url: str) -> str:
    """The start-up text: what is simulated, how fast it will be, and a command that works as pasted."""
    config, deployment, limits = app.config, app.deployment, app.limits
    gpus = config.instances * deployment.gpus
    replicas = "1 instance" if config.instances == 1 else f"{config.instances} instances"
    rows = [
        ("cluster", f"{replicas} of {deployment.describe()}"),
        ("GPUs", f"{gpus} x {deployment.gpu.name}, none of them real"),
        (
            "KV cache",
            f"{limits.kv_capacity_tokens:,} tokens on each instance; a request may have {app.max_model_len:,} tokens",
        ),
        ("one user", _one_user(app)),
        ("router", config.router if config.instances > 1 else f"{config.router} (with one instance there is no choice)"),
        ("speed", _speed(config.speed)),
        ("API", f"{url}/v1"),
    ]
    lines = [f"llmirage serves {', '.join(app.model_names)}", *(f"  {name:<9} {text}" for name, text in rows)]
    body = (
        f'{{"model": "{app.model_names[0]}", "messages": [{{"role": "user", "content": "Hello"}}], '
        '"max_tokens": 60, "stream": true}'
    )
    lines += ["", f"  curl -N {url}/v1/chat/completions -H 'Content-Type: application/json' \\", f"    -d '{body}'", ""]
    return "\n".join(lines)


def _one_user(app: LlmirageApp) -> str:
    config = app.config
    if config.fixed_times:
        return f"TTFT {config.ttft_ms or 0:g} ms, ITL {config.itl_ms or 0:g} ms, whatever the load (fixed times, no physics)"
    ttft_ms = app.deployment.ttft_s(EXAMPLE_PROMPT_TOKENS) * 1000
    tpot_ms = app.deployment.tpot_s(EXAMPLE_PROMPT_TOKENS) * 1000
    rate = f"{1000 / tpot_ms:.0f} tokens/s"
    return f"TTFT {ttft_ms:.1f} ms for {EXAMPLE_PROMPT_TOKENS:,} prompt tokens, TPOT {tpot_ms:.2f} ms ({rate})"


def _speed(speed: float) -> str:
    if speed == math.inf:
        return "max: the cluster never waits"
    if speed == 1:
        return "1: as in life"
    how = f"{speed:g} times faster" if speed > 1 else f"{1 / speed:g} times slower"
    return f"{speed:g}: {how} than life (`llmirage run --speed {speed:g}` reports in the cluster's time)"


def farewell(pacing: PacingSummary) -> str:
    """The text at the end: how well the server kept time. Empty when nothing was sent, or nothing was paced."""
    if not pacing.tokens:
        return ""
    late = pacing.late_tokens / pacing.tokens
    return (
        f"{pacing.tokens:,} tokens sent. Late by {pacing.mean_s * 1000:.2f} ms on average, "
        f"p50 <= {pacing.p50_s * 1000:.2g} ms, p99 <= {pacing.p99_s * 1000:.2g} ms; "
        f"{late:.1%} more than {pacing.late_s * 1000:g} ms."
    )

"""What `llmirage step` does: one forward pass as data, and as a table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from json import dumps
from typing import Any

import click

from llmirage_server.commands.step import StepSettings
from llmirage_server.config import InstanceSettings
from llmirage_server.config.ineffective import check_effect, effect_notes
from llmirage_server.config.planning import link_note
from llmirage_server.perf import DeploymentError
from llmirage_server.perf.bands import SHARES, Quantity, band_of
from llmirage_server.perf.deployment import Deployment
from llmirage_server.perf.speculation import Speculative
from llmirage_server.perf.steps.stage import OperationTime
from llmirage_server.perf.steps.step_model import StepBatch
from llmirage_shared.plural import plural
from llmirage_shared.settings import ConfigError, InputRefused, instance_of, settings_of


def step(json: bool, **given: Any) -> None:
    """Run `llmirage step`."""
    deployment, explained = explained_step(instance_of(StepSettings, given))
    click.echo(dumps(explained, indent=2) if json else as_table(deployment, explained))


def explained_step(settings: StepSettings) -> tuple[Deployment, dict[str, Any]]:
    """Return the deployment, and its step as data. Raises ConfigError."""
    decode, prefill = settings.decode, settings.prefill
    num_speculative_tokens, draft_model = settings.num_speculative_tokens, settings.draft_model
    if not decode and not prefill:
        raise ConfigError(["give at least one --decode N@CONTEXT or --prefill TOKENS@CONTEXT"])
    if draft_model is not None and num_speculative_tokens is None:
        raise ConfigError(["--draft-model needs --num-speculative-tokens N"])
    given = {name: getattr(settings, name) for name in settings_of(StepSettings) if name not in _OF_THE_BATCH}
    given = {name: value for name, value in given.items() if value is not None}
    speculative = None
    if num_speculative_tokens is not None:
        speculative = Speculative(num_speculative_tokens, "draft_model" if draft_model else "mtp", draft_model)
    asked = [InstanceSettings(**{_SETTINGS.get(name, name): value for name, value in given.items()})]
    check_effect(asked)
    batch = StepBatch(prefill, [context for sequences, context in decode for _ in range(sequences)])
    try:
        deployment = Deployment.create(**({"gpu": "h100_sxm"} | given), speculative=speculative)
        explained = explain(deployment, batch) | {"assumed": _assumed(deployment, given), "notes": effect_notes(asked)}
    except DeploymentError as error:
        first, *others = error.problems
        raise InputRefused([first, *[f"llmirage step: {problem}" for problem in others]], "step") from None
    return deployment, explained


_OF_THE_BATCH = ("decode", "prefill", "num_speculative_tokens", "draft_model")
_SETTINGS = {
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "dp": "data_parallel_size",
    "ep": "expert_parallel_size",
}  # what cluster files call them


def _assumed(deployment: Deployment, given: Mapping[str, Any]) -> list[str]:
    """Return the values taken for the main settings that were not given."""
    formats = f"{deployment.weight_dtype} weights, as published"
    taken = {"gpu": deployment.gpu.name, "tp": "TP1", "engine": deployment.engine.title, "weights": formats}
    copies = link_note(deployment) if "peer_to_peer" not in given else ""
    return [text for name, text in taken.items() if name not in given] + [copies] * bool(copies)


def explain(deployment: Deployment, batch: StepBatch) -> dict[str, Any]:
    """Return the step of this batch on every attention data-parallel rank; ms of the operations add up to step_ms.

    Raises DeploymentError when the performance model cannot answer.
    """
    batches = [batch] * deployment.parallel.dp
    stages_s = deployment.step_model().stages_s(batches)
    ops, constants = deployment.roofline.explain(batches), deployment.roofline.provenance()
    if deployment.perf_model == "silicon":
        ops = _measured(deployment, batch, ops, sum(stages_s))
        constants = ["measured tables of aiconfigurator-core instead of constants"]
    step_s, memory = sum(op.seconds for op in ops), deployment.memory
    new = sum(tokens for tokens, _ in batch.prefill)
    return {
        "deployment": deployment.describe(),
        "engine": deployment.engine.name,
        "perf_model": deployment.perf_model,
        "gpus": deployment.gpus,
        "decode": [{"sequences": n, "context": c} for c, n in Counter(batch.decode_contexts).items()],
        "prefill": [{"tokens": n, "context": c} for n, c in batch.prefill],
        "tokens": (new + len(batch.decode_contexts)) * len(batches),
        "impossible": _impossible(deployment, batch),
        "step_ms": step_s * 1e3,
        "ideal_ms": sum(op.ideal_s for op in ops) * 1e3,
        "stages_ms": [seconds * 1e3 for seconds in stages_s],
        "ops": [
            {
                "name": op.name,
                "calls": op.calls,
                "ms": op.seconds * 1e3,
                "share": op.seconds / step_s,
                "bound": op.bound,
                "flops": op.flops,
                "bytes": op.bytes,
                "ideal_ms": op.ideal_s * 1e3,
            }
            for op in ops
        ],
        "memory": {
            "gpu_gb": memory.gpu_bytes / 1e9,
            "unused_gb": memory.unused_bytes / 1e9,
            "weights_gb": memory.weights_bytes / 1e9,
            "activations_gb": memory.activation_bytes / 1e9,
            "reserve_gb": memory.reserve_bytes / 1e9,
            "sequences_gb": memory.fixed_bytes / 1e9,
            "kv_gb": memory.kv_bytes / 1e9,
            "kv_tokens": memory.kv_tokens,
            "kv_blocks": memory.kv_tokens // deployment.block_size,
            "kv_bytes_per_token": memory.kv_bytes_per_token,
        },
        "band": _band(deployment, batch, step_s * 1e3),
        "confidence": {"gpu": deployment.gpu.confidence, "model": deployment.model.confidence},
        "constants": constants,
    }


def _impossible(deployment: Deployment, batch: StepBatch) -> list[str]:
    """Why no engine would form this step on this instance; its time is then what the kernels would take."""
    contexts = [*batch.decode_contexts, *(tokens + before for tokens, before in batch.prefill)]
    held, room, most = sum(contexts), deployment.memory.kv_tokens, deployment.model.max_model_len
    found = []
    if held > room:
        found.append(f"it needs {held:,} tokens of KV cache, and there is room for {room:,}")
    if max(contexts) > most:
        found.append(f"{max(contexts):,} tokens are more than the model's context of {most:,}")
    if len(batch.decode_contexts) > deployment.most_running:
        found.append(f"{len(batch.decode_contexts):,} sequences are more than max_num_seqs, {deployment.most_running:,}")
    new, budget = sum(tokens for tokens, _ in batch.prefill), deployment.max_num_batched_tokens
    if deployment.engine.scheduler != "sglang":  # whose limit is of prompts alone
        drafts = deployment.speculative.num_speculative_tokens if deployment.speculative else 0
        new += len(batch.decode_contexts) * (1 + drafts)
    if new > budget:
        found.append(f"{new:,} new tokens are more than max_num_batched_tokens, {budget:,}")
    return found


def _band(deployment: Deployment, batch: StepBatch, step_ms: float) -> dict[str, Any]:
    """Within which the TPOT of measured servers with such steps lies; of prompts alone, their TTFT."""
    band = band_of(deployment, concurrency=len(batch.decode_contexts))
    quantity: Quantity = "tpot" if batch.decode_contexts else "ttft"
    intervals = {str(share): band.interval(quantity, step_ms, share) for share in SHARES}
    return {"of_measured": quantity.upper(), **intervals, "of": band.of, "caution": band.caution}


def _measured(deployment: Deployment, batch: StepBatch, ops: list[OperationTime], step_s: float) -> list[OperationTime]:
    """Return all kernels as one line, beside the host's share: the silicon model knows sums only."""
    rows = len(batch.decode_contexts) + len(batch.prefill)
    host_s = deployment.engine.host_s(math.inf, rows)
    kernels = [op for op in ops if op.name != "host"]
    flops, moved, ideal_s = (sum(getattr(op, what) for op in kernels) for what in ("flops", "bytes", "ideal_s"))
    longest = max(kernels, key=lambda op: op.seconds)
    total = OperationTime("kernels, from measured tables", 1, step_s - host_s, flops, moved, ideal_s, longest.bound)
    return [total, OperationTime("host", 1, host_s)]


def as_table(deployment: Deployment, explained: dict[str, Any]) -> str:
    """Return the tables of a step for people."""
    ops, step_ms, ideal_ms = explained["ops"], explained["step_ms"], explained["ideal_ms"]
    width = max(len(op["name"]) for op in ops)
    head = f"{'operation':{width}}  calls        ms   share  bound      TFLOP       GB  ideal ms  reached"
    lines = [f"{explained['deployment']}, {deployment.engine.title}", _work(explained)]
    lines += [f"Assumed: {'; '.join(explained['assumed'])}"] if explained["assumed"] else []
    lines += [f"Note: {note}" for note in explained.get("notes", ())]
    lines += [f"No engine forms this step: {'; '.join(explained['impossible'])}"] if explained["impossible"] else []
    lines += ["", head, "-" * len(head)]
    lines += [
        f"{op['name']:{width}}  {op['calls']:5d}  {op['ms']:8.3f}  {op['share']:6.1%}  {op['bound']:8s}"
        f"{_amount(op['flops'] / 1e12, 8)} {_amount(op['bytes'] / 1e9, 8)}  {_amount(op['ideal_ms'], 8)}"
        f"  {_share(op['ideal_ms'], op['ms'])}"
        for op in ops
    ]
    lines += [
        "-" * len(head),
        f"{'step':{width}}         {step_ms:8.3f}  100.0%  {'':8s}{_amount(sum(op['flops'] for op in ops) / 1e12, 8)} "
        f"{_amount(sum(op['bytes'] for op in ops) / 1e9, 8)}  {_amount(ideal_ms, 8)}  {_share(ideal_ms, step_ms)}",
    ]
    if len(explained["stages_ms"]) > 1:
        lines.append("pipeline stages: " + " + ".join(f"{ms:.3f}" for ms in explained["stages_ms"]) + " ms")
    if deployment.speculative is None:
        lines.append(f"{explained['tokens'] / step_ms * 1e3:,.0f} tokens/s with steps like this one")
    band = explained["band"]
    about = f"{band['of']}{'; ' * bool(band['caution'])}{band['caution']}"
    within = "unknown" if band["90"] is None else "within {:.3g} to {:.3g} ms".format(*band["90"])
    lines += [
        f"band: 90 % of measured {band['of_measured']} {within}, of {about}",
        "ideal: the larger of FLOPs and bytes at datasheet rates, for each operation (the roofline limit)",
        "",
        "Memory of one GPU",
        deployment.memory.describe(),
        *([f"each of {deployment.parallel.dp} attention ranks has as many"] if deployment.parallel.dp > 1 else []),
        "",
        "Confidence",
        f"  {deployment.gpu.name}: {deployment.gpu.confidence}",
        *([f"  {deployment.model.name}: {deployment.model.confidence}"] if deployment.model.confidence else []),
        *(f"  {line}" for line in explained["constants"]),
    ]
    return "\n".join(lines)


def _work(explained: dict[str, Any]) -> str:
    parts = [
        f"{plural(d['sequences'], 'sequence')} decoding at {plural(d['context'], 'token')}" for d in explained["decode"]
    ]
    parts += [
        f"a chunk of {p['tokens']:,} prompt tokens" + (f" after {p['context']:,}" if p["context"] else "")
        for p in explained["prefill"]
    ]
    return "One step: " + ", ".join(parts)


def _amount(value: float, width: int) -> str:
    """Three digits that count; a dash for nothing."""
    if not value:
        return f"{'-':>{width}}"
    return f"{value:{width}.3f}" if value < 100 else f"{value:{width},.0f}"


def _share(ideal: float, real: float) -> str:
    return f"{ideal / real:7.0%}" if ideal else f"{'-':>7}"

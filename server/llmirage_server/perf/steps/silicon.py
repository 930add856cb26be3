"""A second performance model: the measured tables of the package aiconfigurator-core (NVIDIA, Apache-2.0; extra `silicon`).

The GPU time of a step is interpolated between measured kernels; host time is that of our engine profiles, so that the two
performance models differ in the kernels alone. The package is imported when a deployment asks for it, and not before.
"""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from llmirage_server.perf import DeploymentError
from llmirage_server.perf.catalogue.gpus import GpuSpec
from llmirage_server.perf.catalogue.models import ModelSpec
from llmirage_server.perf.engines.engine import Engine
from llmirage_server.perf.parallelism import Parallelism
from llmirage_server.perf.steps.step_model import GroupStepModel, StepBatch

PACKAGE = "aiconfigurator_core"

# Our names of weight formats -> theirs, for dense layers and for experts; fp8 has static scales of activations.
_GEMM = {
    "bf16": "bfloat16",
    "fp8": "fp8_static",
    "fp8_block": "fp8_block",
    "nvfp4": "nvfp4",
    "int4": "int4_wo",
    "int8": "sq",
    "mxfp4": "bfloat16",
}
_MOE = _GEMM | {"fp8": "fp8", "mxfp4": "w4a16_mxfp4"}

# Contexts are rounded to so many tokens before a table is asked: a step's answer costs 0.1 ms, one from memory 1 us.
_CONTEXT_GRAIN = 16


Breakdown = Callable[[int, int, int, int, int], tuple[float, float, float, float]]
"""`mixed_step_breakdown(ctx_tokens, gen_tokens, isl, osl, prefix)` of aiconfigurator_core.sdk.engine.EngineHandle 0.12.

It returns milliseconds: total, shared, prefill attention and decode attention of a step. ctx_tokens new tokens belong to
prompts of isl tokens, of which `prefix` were computed before; prefill attention is divided by ceil(isl / ctx_tokens).
gen_tokens sequences have isl + osl / 2 tokens of context.
"""


class SiliconStep:
    """Step times of one instance from measured tables. GroupStepModel; one pipeline stage.

    Raises DeploymentError from any method where the tables have no answer.
    """

    stages = 1

    def __init__(self, breakdown: Breakdown, engine: Engine, *, ranks: int = 1) -> None:
        self.ranks = ranks
        self._engine = engine
        self._breakdown: Breakdown = lru_cache(maxsize=65536)(lambda *args: _answer(breakdown, *args))

    def step_s(self, prefill: Sequence[tuple[int, int]], decode_contexts: Sequence[int]) -> float:
        sequences = len(decode_contexts)
        new = sum([chunk[0] for chunk in prefill])
        if not new and not sequences:
            return 0.0
        mean = sum(decode_contexts) / sequences if sequences else _CONTEXT_GRAIN
        context = max(1, round(mean / _CONTEXT_GRAIN)) * _CONTEXT_GRAIN
        # Prompt attention below is asked for chunk by chunk; the other parts do not depend on the prompts' lengths.
        _, shared, _, decode = self._breakdown(new, sequences, context, 0, 0)
        attention = sum([self._prefill_attention_ms(n, c) for n, c in prefill])
        gpu_s = (shared + decode + attention) * 1e-3
        return gpu_s + self._engine.host_s(gpu_s, sequences + len(prefill))

    def stages_s(self, batches: Sequence[StepBatch]) -> Sequence[float]:
        """Return the seconds of the one stage: the busiest rank's; see GroupStepModel."""
        seconds = max([self.step_s(batch.prefill, batch.decode_contexts) for batch in batches])
        return (seconds + self._engine.dp_sync_ms * 1e-3 if seconds and self.ranks > 1 else seconds,)

    def _prefill_attention_ms(self, new: int, context: int) -> float:
        length = new + round(context / _CONTEXT_GRAIN) * _CONTEXT_GRAIN
        return self._breakdown(new, 0, length, 0, length - new)[2] * -(-length // new)


def silicon_step_model(
    what: str,
    model: ModelSpec,
    gpu: GpuSpec,
    engine: Engine,
    parallel: Parallelism,
    *,
    weights: str,
    kv_dtype: str,
    speculative: bool,
) -> GroupStepModel:
    """Return the step model of a deployment from measured tables.

    what: the deployment, for messages. weights: a name of WEIGHT_DTYPES.

    Raises DeploymentError where the package is not installed, or has no measurements for this model, GPU, engine or format.
    """
    if parallel.pp > 1 or speculative:
        raise DeploymentError(
            f"{what}: the silicon performance model has neither pipeline stages nor speculation; use perf_model roofline"
        )
    try:
        sdk: Any = importlib.import_module(f"{PACKAGE}.sdk.engine")
    except ImportError as error:
        raise DeploymentError(
            f"perf_model silicon needs the package aiconfigurator-core: pip install 'llmirage[silicon]' ({error})"
        ) from error
    logging.getLogger(PACKAGE).setLevel(logging.CRITICAL)  # it warns of tables it completes; errors are raised as well
    try:
        handle = sdk.EngineHandle.compile(
            _bundled_model(model.name, model.aliases, Path(sdk.__file__).parent.parent),
            gpu.key,
            engine.base,
            tp_size=parallel.tp,
            attention_dp_size=parallel.dp,
            moe_tp_size=parallel.tp * parallel.dp // parallel.ep if model.experts else 1,
            moe_ep_size=parallel.ep,
            gemm_quant_mode=_GEMM[weights],
            moe_quant_mode=_MOE[weights] if model.experts else None,
            kvcache_quant_mode="fp8" if kv_dtype == "fp8" else "bfloat16",
            fmha_quant_mode="bfloat16",
        )
        steps = SiliconStep(handle.mixed_step_breakdown, engine, ranks=parallel.dp)
        steps.step_s([(512, 0)], [1024])
    except DeploymentError as error:
        raise DeploymentError([f"{what}: {problem}" for problem in error.problems]) from error
    except Exception as error:  # a beta interface that raises its own, ValueError, RuntimeError and more
        raise DeploymentError(f"{what}: {_no_measurements(error)}") from error
    return steps


def _answer(breakdown: Breakdown, *args: int) -> tuple[float, float, float, float]:
    try:
        return breakdown(*args)
    except Exception as error:
        raise DeploymentError([_no_measurements(error)]) from error


def _no_measurements(error: Exception) -> str:
    reason = str(error).strip().splitlines()
    return f"aiconfigurator-core has no measurements for it: {reason[0] if reason else type(error).__name__}"


def _bundled_model(name: str, aliases: Sequence[str], package: Path) -> str:
    """Return the name under which the package has this architecture's configuration; it would look elsewhere on a hub."""
    bundled = {
        _plain(file.name.removesuffix("_config.json")): file.name.removesuffix("_config.json").replace("--", "/")
        for file in sorted(package.glob("model_configs/*_config.json"), reverse=True)
        if not file.name.endswith("hf_quant_config.json")
    }
    for candidate in (name, *aliases):
        if (found := bundled.get(_plain(candidate))) is not None:
            return found
    raise DeploymentError(f"aiconfigurator-core has no configuration of {name}")


def _plain(name: str) -> str:
    """Return a model's name without organisation, format, tuning and date, which do not change its shape."""
    short = re.split(r"/|--", name)[-1].casefold()
    short = re.sub(r"^meta-|[-_](instruct|thinking|chat|base|fp8|nvfp4|bf16|v0\.1|\d{4})(?=[-_]|$)", "", short)
    return short.replace("llama-3.3", "llama-3.1")

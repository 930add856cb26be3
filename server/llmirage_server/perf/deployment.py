"""One instance: which model, on which GPUs, split how, in which formats, under which engine; and what follows from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, get_args

from llmirage_server.perf import DeploymentError, look_up
from llmirage_server.perf.catalogue.dtypes import KV_DTYPE_BYTES, WEIGHT_DTYPES, MoeBackend, WeightDtype
from llmirage_server.perf.catalogue.gpus import GIB, GpuSpec
from llmirage_server.perf.catalogue.lookup import find_gpu, find_model
from llmirage_server.perf.catalogue.models import ModelSpec
from llmirage_server.perf.engines.engine import Engine
from llmirage_server.perf.engines.lookup import find_engine
from llmirage_server.perf.lora import LoraCosts
from llmirage_server.perf.memory import (
    MemoryBudget,
    activation_bytes_per_rank,
    draft_bytes_per_rank,
    vision_bytes_per_rank,
    weights_bytes_per_rank,
)
from llmirage_server.perf.parallelism import Parallelism, parallelism_problems, split_layers
from llmirage_server.perf.speculation import Speculative
from llmirage_server.perf.steps.step import RooflineStep
from llmirage_server.perf.steps.step_model import GroupStepModel, PerfModel


def find_draft(speculative: Speculative | None, model: ModelSpec | None, problems: list[str]) -> ModelSpec | None:
    """Return the draft model or head; None where the model drafts for itself, or nothing on the GPUs does."""
    if speculative is None:
        return None
    if speculative.method == "draft_model":
        if speculative.draft_model is None:
            problems.append("speculation with a draft model needs its name")
            return None
        return look_up(find_model, "draft_model", speculative.draft_model, problems)
    if speculative.method == "eagle3":
        return model.eagle3_head if model is not None else None
    if speculative.method == "ngram":
        return None
    if model is not None and not model.mtp_layers:
        problems.append(f"{model.name} has no multi-token prediction layer to draft with; name a draft model")
    return None


def hardware_problems(gpu: GpuSpec, engine: Engine, weights: str, kv_dtype: str) -> Iterator[str]:
    """Yield what the GPU cannot run, as far as it is known."""
    if gpu.vendor != "nvidia" and engine.base == "trtllm":
        yield f"{engine.title} runs on NVIDIA GPUs only, not on {gpu.name}; choices: vllm, sglang"
    if gpu.vendor != "nvidia" and weights == "nvfp4":
        yield f"{gpu.name} has no kernels for nvfp4 weights, a format of NVIDIA's; choices: mxfp4, fp8, int4, bf16"
    if kv_dtype == "fp8" and "fp8" not in gpu.flops:
        yield f"{gpu.name} has no fp8 arithmetic for an fp8 KV cache; choices: bf16"


def moe_backend_problems(backend: str, weights: str, engine: Engine | None, gpu: GpuSpec | None) -> Iterator[str]:
    """Yield a sentence for kernels of experts that nobody measured beside the default, or that the GPU cannot run."""
    base = engine.base if engine else ""
    if backend == "marlin":
        fp4 = gpu is not None and gpu.has_fp4
        if engine and (base != "vllm" or not (weights == "mxfp4" or (weights == "nvfp4" and not fp4))):
            yield (
                "moe_backend marlin: measured beside other kernels only under vLLM, for experts in mxfp4, "
                "and in nvfp4 where the GPU does not multiply it"
            )
    elif backend != "auto":
        if engine and (base, weights) != ("trtllm", "nvfp4"):
            yield f"moe_backend {backend}: measured beside other kernels only under TensorRT-LLM, for experts in nvfp4"
        elif backend == "trtllm" and gpu is not None and (gpu.link != "nvlink" or not gpu.has_fp4):
            yield f"moe_backend trtllm: TensorRT-LLM's own kernels of experts are for B200 and its kin, not for {gpu.name}"


MIN_KV_TOKENS = 1024  # an instance with less than this much KV cache is not worth starting

WEIGHT_ALIASES = {"awq": "int4", "gptq": "int4"}


@dataclass(frozen=True)
class Deployment:
    """One instance of a model. Build it with `create`, which refuses what cannot work."""

    model: ModelSpec
    gpu: GpuSpec
    engine: Engine
    parallel: Parallelism
    weight_dtype: str
    kv_dtype: str
    gpu_memory_utilization: float
    max_num_batched_tokens: int
    max_num_seqs: int
    block_size: int
    num_gpu_blocks_override: int | None = None
    least_tokens: int = MIN_KV_TOKENS  # KV cache that one sequence must find
    speculative: Speculative | None = None
    draft: ModelSpec | None = None
    perf_model: PerfModel = "roofline"
    moe_backend: MoeBackend = "auto"
    lora_slots: int = 0  # adapters in GPU memory at a time
    max_lora_rank: int = 0

    @classmethod
    def create(
        cls,
        model: str,
        gpu: str,
        *,
        engine: str = "vllm",
        tp: int = 1,
        pp: int = 1,
        ep: int = 1,
        dp: int = 1,
        weights: str = "auto",
        kv_cache_dtype: str = "auto",
        gpu_memory_utilization: float | None = None,
        max_num_batched_tokens: int | None = None,
        max_num_seqs: int | None = None,
        num_gpu_blocks_override: int | None = None,
        block_size: int | None = None,
        max_model_len: int | None = None,
        speculative: Speculative | None = None,
        peer_to_peer: bool | None = None,
        perf_model: PerfModel = "roofline",
        moe_backend: MoeBackend = "auto",
        engine_fields: Sequence[tuple[str, Any]] = (),
        lora_slots: int = 0,
        max_lora_rank: int = 0,
    ) -> Deployment:
        """Look up and check everything. Raises DeploymentError, with all problems or with the arithmetic that fails.

        None: the engine's own default on that GPU. gpu_memory_utilization is what the engine means by its own setting
        (mem_fraction_static, free_gpu_memory_fraction). max_model_len: tokens that one sequence must find room for.
        peer_to_peer: whether GPUs copy to each other directly; None: as the GPU's entry says. moe_backend: kernels
        of experts, where several were measured; auto: the engine's default. engine_fields: of the engine's profile, changed.
        lora_slots, max_lora_rank: adapters in GPU memory at a time, and the rank that each slot has room for.
        """
        problems: list[str] = []
        found_model = look_up(find_model, "model", model, problems)
        found_gpu = look_up(find_gpu, "gpu", gpu, problems)
        if found_gpu is not None and peer_to_peer is not None:
            found_gpu = replace(found_gpu, peer_to_peer=peer_to_peer)
        profile = look_up(find_engine, "engine", engine, problems)
        if profile is not None and engine_fields:
            profile = replace(profile, **dict(engine_fields))
        draft = find_draft(speculative, found_model, problems)
        numbers = {
            "tp": tp, "pp": pp, "ep": ep, "dp": dp, "max_num_batched_tokens": max_num_batched_tokens,
            "max_num_seqs": max_num_seqs, "num_gpu_blocks_override": num_gpu_blocks_override, "block_size": block_size,
            "max_model_len": max_model_len,
        }  # fmt: skip
        problems += [f"{name} is {n}, but must be at least 1" for name, n in numbers.items() if n is not None and n < 1]
        if gpu_memory_utilization is not None and not 0 < gpu_memory_utilization <= 1:
            problems.append(f"gpu_memory_utilization is {gpu_memory_utilization}, but must be above 0 and at most 1")
        if weights == "auto" and found_model is not None:
            weights = found_model.native_weights
        weights = WEIGHT_ALIASES.get(weights, weights)
        if weights not in WEIGHT_DTYPES and weights != "auto":
            choices = ", ".join(("auto", *WEIGHT_DTYPES, *WEIGHT_ALIASES))
            problems.append(f"weights: unknown format {weights!r}; choices: {choices}")
        kv_dtype = kv_cache_dtype
        if kv_dtype == "auto":
            kv_dtype = profile.kv_dtype_on(found_gpu, weights) if profile and found_gpu else "bf16"
        if kv_dtype not in KV_DTYPE_BYTES:
            problems.append(f"kv_cache_dtype: unknown format {kv_dtype!r}; choices: auto, {', '.join(KV_DTYPE_BYTES)}")
        if perf_model not in (perf_models := get_args(PerfModel)):
            problems.append(f"perf_model: unknown performance model {perf_model!r}; choices: {', '.join(perf_models)}")
        problems += moe_backend_problems(moe_backend, weights, profile, found_gpu)
        if problems or found_model is None or found_gpu is None or profile is None:
            raise DeploymentError(problems)
        parallel = Parallelism(tp, pp, ep, dp)
        problems += parallelism_problems(found_model, parallel, weights)
        problems += parallelism_problems(draft, Parallelism(tp)) if draft else ()
        problems += hardware_problems(found_gpu, profile, weights, kv_dtype)
        if problems:
            raise DeploymentError(list(dict.fromkeys(problems)))
        seqs = max_num_seqs or profile.tier(profile.max_num_seqs, found_gpu)
        batched = max_num_batched_tokens or profile.tier(profile.max_num_batched_tokens, found_gpu)
        deployment = cls(
            model=found_model,
            gpu=found_gpu,
            engine=profile.on(found_gpu),
            parallel=parallel,
            weight_dtype=weights,
            kv_dtype=kv_dtype,
            gpu_memory_utilization=gpu_memory_utilization or profile.utilization_on(found_gpu, batched, seqs, parallel),
            max_num_batched_tokens=batched,
            max_num_seqs=seqs,
            block_size=block_size or profile.block_tokens(found_model, KV_DTYPE_BYTES[kv_dtype], tp),
            num_gpu_blocks_override=num_gpu_blocks_override,
            least_tokens=max_model_len or MIN_KV_TOKENS,
            speculative=speculative,
            draft=draft,
            perf_model=perf_model,
            moe_backend=moe_backend,
            lora_slots=lora_slots,
            max_lora_rank=max_lora_rank,
        )
        deployment._check_memory()
        return deployment

    def _check_memory(self) -> None:
        """Refuse an instance without room for one sequence."""
        m, least = self.memory, self.least_tokens
        if m.tokens_override is not None and m.weights_bytes + m.kv_bytes > m.gpu_bytes:
            raise DeploymentError(
                f"num_gpu_blocks_override {self.num_gpu_blocks_override}: so many blocks take {m.kv_bytes / GIB:,.1f} "
                f"GiB beside {m.weights_bytes / GIB:.1f} GiB of weights, and the GPU has {m.gpu_bytes / GIB:.1f} GiB"
            )
        if self._fits():
            return
        if m.tokens_override is not None and m.tokens_override < least:
            raise DeploymentError(
                f"num_gpu_blocks_override {self.num_gpu_blocks_override}: so many blocks of {self.block_size} tokens "
                f"hold {m.tokens_override:,} tokens, fewer than the {least:,} of one sequence"
            )
        sequence = m.bytes_per_sequence + least * m.kv_bytes_per_token
        needed = m.weights_bytes + m.activation_bytes + m.reserve_bytes + sequence
        raise DeploymentError(
            f"{self.describe()} does not fit: {needed / GIB:.1f} GiB per GPU needed, and {self.engine.title} may use "
            f"{m.usable_bytes / GIB:.1f}; {self._what_would_fit()}\n"
            f"weights {m.weights_bytes / GIB:.1f} GiB + activations {m.activation_bytes / GIB:.1f} GiB + reserve "
            f"{m.reserve_bytes / GIB:.1f} GiB + KV cache of one sequence ({least:,} tokens) {sequence / GIB:.1f} GiB = "
            f"{needed / GIB:.1f} GiB > {m.usable_bytes / GIB:.1f} GiB ({self.engine.flags['gpu_memory_utilization']} "
            f"{self.gpu_memory_utilization:.2f} of {m.gpu_bytes / GIB:.1f} GiB)"
        )

    def _fits(self) -> bool:
        return self.memory.kv_tokens >= self.least_tokens and self.memory.pool_bytes > 0

    def _what_would_fit(self) -> str:
        """Return the smallest tensor-parallel size that fits, then pipeline size, as the end of a sentence."""
        most = max(self.gpu.link_gpus, self.parallel.tp)
        for tp in range(self.parallel.tp + 1, most + 1):
            if self._with(replace(self.parallel, tp=tp)):
                return f"it needs tp {tp}"
        for pp in (2, 4, 8):
            for tp in (self.parallel.tp, most):
                if pp > self.parallel.pp and self._with(replace(self.parallel, tp=tp, pp=pp)):
                    return f"it needs tp {tp} pp {pp}"
        return f"no tp up to {most} fits: use a smaller weight format or a GPU with more memory"

    def _with(self, parallel: Parallelism) -> bool:
        """Return if another split works and fits."""
        other = replace(self, parallel=parallel)
        return not any(parallelism_problems(self.model, parallel, self.weight_dtype)) and other._fits()

    @property
    def gpus(self) -> int:
        return self.parallel.gpus

    @property
    def most_running(self) -> int:
        return self.engine.most_running(self.max_num_seqs, self.parallel.pp)

    @property
    def kv_bytes_per_token(self) -> int:
        """KV cache bytes of one token in the whole instance, each head counted once: what a transfer has to move."""
        return self.model.kv_bytes_per_token(KV_DTYPE_BYTES[self.kv_dtype], whole_windows=self.engine.whole_windows)

    @property
    def kv_bytes_per_sequence(self) -> int:
        """Bytes that a long sequence has besides, in the whole instance: sliding windows and recurrent states."""
        whole = self.engine.whole_windows
        windows = 0 if whole else self.model.window_bytes_per_sequence(KV_DTYPE_BYTES[self.kv_dtype])
        return windows + self.model.state_bytes_per_sequence()

    @property
    def _weights(self) -> WeightDtype:
        weights = WEIGHT_DTYPES[self.weight_dtype].on(self.gpu.flops)
        return self.engine.expert_weights(weights, self.gpu, self.moe_backend, self.model.native_weights, self.parallel)

    @cached_property
    def memory(self) -> MemoryBudget:
        """The memory of each GPU in the pipeline stage with the least room.

        kv_tokens are those of one scheduler (each attention data-parallel rank has as many).
        """
        stages = split_layers(self.model, self.parallel.pp)
        budgets = [self._stage_memory(i, replace(self.model, groups=groups)) for i, groups in enumerate(stages)]
        return min(budgets, key=lambda b: (b.kv_tokens, b.pool_bytes))

    def _stage_memory(self, i: int, stage: ModelSpec) -> MemoryBudget:
        kv, parallel, last = KV_DTYPE_BYTES[self.kv_dtype], self.parallel, i == self.parallel.pp - 1
        weights = weights_bytes_per_rank(stage, self._weights, parallel, first=i == 0, last=last)
        weights += vision_bytes_per_rank(self.model, self.engine, parallel.tp)
        if self.lora_slots:
            weights += self.lora_slots * self.lora.slot_bytes(self.max_lora_rank)
        whole = self.engine.whole_windows
        per_token = stage.kv_bytes_per_token(kv, parallel.tp, whole)
        windows = 0 if whole else stage.window_bytes_per_sequence(kv, parallel.tp)
        if last and self.speculative is not None:
            method = self.speculative.method
            weights += draft_bytes_per_rank(self.model, self.draft, self._weights, parallel, method)
            if method != "ngram":
                per_token += (self.draft or self.model.draft).kv_bytes_per_token(kv, parallel.tp)
        engine, memory, seqs = self.engine, self.gpu.memory_bytes, self.max_num_seqs
        activations = activation_bytes_per_rank(stage, parallel, engine, self.max_num_batched_tokens, seqs)
        reserve, override = engine.reserve_bytes(self.gpus), self.num_gpu_blocks_override
        unused = engine.unused_bytes(memory, self.gpu_memory_utilization, weights, activations, reserve)
        kept = per_token, windows + stage.state_bytes_per_sequence(parallel.tp)
        tokens = override * self.block_size if override else None
        return MemoryBudget(memory, unused, weights, activations, reserve, *kept, self.most_running, tokens)

    @property
    def aligned_chunks(self) -> bool:
        """If chunks of prompts end where the engine stores recurrent states."""
        return self.engine.scheduler == "vllm" and self.model.linear_layers > 0

    def step_model(self) -> GroupStepModel:
        """Return the step times of this instance, by the performance model that was asked for."""
        if self.perf_model == "silicon":
            from llmirage_server.perf.steps import silicon

            return silicon.silicon_step_model(
                self.describe(),
                self.model,
                self.gpu,
                self.engine,
                self.parallel,
                weights=self.weight_dtype,
                kv_dtype=self.kv_dtype,
                speculative=self.speculative is not None,
            )
        return self.roofline

    @cached_property
    def lora(self) -> LoraCosts:
        return LoraCosts(self.model, self.gpu, self.engine, self._weights, self.parallel, self.max_lora_rank)

    @cached_property
    def roofline(self) -> RooflineStep:
        """The roofline of this instance, which can also explain a step."""
        return RooflineStep(
            self.model,
            self.gpu,
            engine=self.engine,
            weights=self._weights,
            kv_dtype=self.kv_dtype,
            parallel=self.parallel,
            draft=self.draft,
            speculative=self.speculative,
            max_num_seqs=self.max_num_seqs,
        )

    def ttft_s(self, prompt_tokens: int) -> float:
        """Seconds until the first token of one user's prompt on an idle instance, in chunks of max_num_batched_tokens.

        Without the engine's front end (`engine.front_end_ttft_s`).
        """
        step, chunk = self.step_model(), self.max_num_batched_tokens
        return sum(step.step_s([(min(chunk, prompt_tokens - done), done)], []) for done in range(0, prompt_tokens, chunk))

    def tpot_s(self, context_tokens: int) -> float:
        """Seconds between the tokens of one user on an otherwise idle instance."""
        gained = self.speculative.tokens_per_step if self.speculative else 1.0
        return self.step_model().step_s([], [context_tokens]) / gained

    def describe(self) -> str:
        """Return one line for a banner."""
        plain = self.parallel.pp * self.parallel.dp == 1  # the number of GPUs says the rest
        sizes = (replace(self.parallel, tp=1) if plain else self.parallel).describe()
        split = f", {sizes}" if sizes else ""
        nodes = -(-self.gpus // self.gpu.link_gpus)
        across = f" on {nodes} nodes" if nodes > 1 else ""
        widened = " (weight-only)" if self._weights.compute != WEIGHT_DTYPES[self.weight_dtype].compute else ""
        formats = f"{self.weight_dtype} weights{widened}, {self.kv_dtype} KV"
        return f"{self.model.name} on {self.gpus}x {self.gpu.name}{across}{split}, {formats}"

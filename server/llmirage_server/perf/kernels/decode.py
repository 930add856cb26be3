"""Attention of decoding sequences over their cached keys and values, whatever the shape of a head."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from llmirage_server.perf.catalogue.constants import DecodeConstants
from llmirage_server.perf.catalogue.gpus import GpuSpec
from llmirage_server.perf.kernels.kernel import Work
from llmirage_server.perf.kernels.roofline import NS, US, explain

_SPLIT_TOKENS = 4096.0  # context at which the cost of splitting is split_us
_SERIAL_DIMS = 256.0  # dqk + dv at which one token costs an unsplit block serial_ns


@dataclass(frozen=True, slots=True)
class DecodeAttention:
    """Attention of all decoding sequences of a step in one launch; arguments as in kernel.DecodeKernel."""

    memory_context: float
    memory_sequence: float
    compute_context: float
    serial: float  # per token of the longest context
    floor: float
    split: float
    combine: float
    combine_tokens: float
    ramp: float
    ramp_context: float  # tokens
    per_sequence: float
    power: float
    root: float
    cached_context: float  # tokens that the L2 cache holds, in a repeated call
    cache: float
    # for `work`
    flops_context: float
    peak_flops: float
    bytes_context: float
    bytes_sequence: float
    bandwidth: float

    def seconds(self, sequences: int, context_sum: float, longest: float) -> float:
        read = context_sum / self.cache if context_sum < self.cached_context else context_sum
        memory = self.memory_context * read + self.memory_sequence * sequences
        compute = self.compute_context * context_sum + self.serial * longest
        busy = float((memory**self.power + compute**self.power) ** self.root)
        return busy + self._overhead(sequences, context_sum, longest)

    def _overhead(self, sequences: int, context_sum: float, longest: float) -> float:
        return (
            self.floor
            + self.split * sqrt(longest)
            + self.combine * longest / (longest + self.combine_tokens)
            + self.ramp * context_sum / (context_sum + self.ramp_context)
            + self.per_sequence * sequences
        )

    def work(self, sequences: int, context_sum: float, longest: float) -> Work:
        flops = self.flops_context * context_sum
        moved = self.bytes_context * context_sum + self.bytes_sequence * sequences
        read = context_sum / self.cache if context_sum < self.cached_context else context_sum
        return explain(
            self.seconds(sequences, context_sum, longest),
            flops,
            moved,
            flops / self.peak_flops,
            moved / self.bandwidth,
            compute=self.compute_context * context_sum + self.serial * longest,
            memory=self.memory_context * read + self.memory_sequence * sequences,
            launch=self._overhead(sequences, context_sum, longest),
        )


def decode_attention(
    gpu: GpuSpec,
    c: DecodeConstants,
    *,
    flops_context: float,
    packed_flops_context: float,
    bytes_context: float,
    bytes_sequence: float,
    schedules: float,
    dims: float,
    repeated: bool = False,
) -> DecodeAttention:
    """Time of decode attention, F being the bf16 rate, from what one token of context and one sequence ask for.

    memory = bytes / (BW memory); compute = packed flop / (F compute) + serial_ns longest (dqk + dv) / 256, the second for
    kernels that do not split one sequence's context over the multiprocessors. Smooth maximum of `power`, plus overheads: the
    floor, split_us sqrt(longest / 4096), combine_us longest / (longest + combine_tokens) for adding up partial results,
    ramp_us bytes / (bytes + ramp_mb) until all multiprocessors stream, schedule_ns for each of `schedules` of a sequence.

    repeated: as a benchmark that repeats one call finds it, with up to `cache_mb` of keys and values served from the L2
    cache at `cache` times the memory bandwidth. A model's layers evict each other's, so a model never sees that.
    """
    peak, bandwidth = gpu.flops["bf16"], gpu.bandwidth_bytes_per_s
    reached = bandwidth * c["memory"]
    return DecodeAttention(
        memory_context=bytes_context / reached,
        memory_sequence=bytes_sequence / reached,
        compute_context=packed_flops_context / (peak * c["compute"]),
        serial=c["serial_ns"] * NS * dims / _SERIAL_DIMS,
        floor=c["floor_us"] * US,
        split=c["split_us"] * US / sqrt(_SPLIT_TOKENS),
        combine=c["combine_us"] * US,
        combine_tokens=c["combine_tokens"],
        ramp=c["ramp_us"] * US,
        ramp_context=c["ramp_mb"] * 1e6 / bytes_context,
        per_sequence=c["schedule_ns"] * NS * schedules,
        power=c["power"],
        root=1.0 / c["power"],
        cached_context=c["cache_mb"] * 1e6 / bytes_context if repeated else 0.0,
        cache=c["cache"],
        flops_context=flops_context,
        peak_flops=peak,
        bytes_context=bytes_context,
        bytes_sequence=bytes_sequence,
        bandwidth=bandwidth,
    )

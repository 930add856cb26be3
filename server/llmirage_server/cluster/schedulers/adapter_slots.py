"""LoRA adapters of one scheduler: which may run together, where their weights are, and what they add to its steps.

The rules are vLLM's: at most `max_loras` adapters in a batch, each with a slot in GPU memory; `max_cpu_loras` in the host's;
both least recently used first. What is not there is loaded before the step that needs it. SGLang's scheduler counts requests
without an adapter as one more (max_loras_per_batch).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from llmirage_server.cluster.adapters import Adapter, AdapterCosts
from llmirage_server.cluster.limits import EngineLimits
from llmirage_server.cluster.request import Sequence
from llmirage_server.cluster.schedulers.batch import Step


class AdapterSlots:
    """The adapters of one scheduler."""

    def __init__(self, limits: EngineLimits, costs: AdapterCosts, loaded: Iterable[Adapter] = ()) -> None:
        """Create the slots. loaded: the adapters that are there from the start."""
        self.most = limits.max_loras
        self._most_in_host = max(limits.max_loras, limits.max_cpu_loras)
        self._costs = costs
        self._counts_base = limits.scheduler == "sglang"
        self.clear()
        for adapter in loaded:
            self._bring(adapter)

    def clear(self) -> None:
        """Forget all adapters, as a process that ends does."""
        self._on_gpu: OrderedDict[int, None] = OrderedDict()  # numbers, least recently used first
        self._in_host: OrderedDict[int, None] = OrderedDict()  # these among them
        self._loaded_s = float("-inf")  # when loads that were asked for end

    def load(self, adapter: Adapter, now: float) -> float:
        """Load an adapter; the engine forms no step meanwhile. Return the seconds that this takes."""
        seconds = self._bring(adapter)
        self._loaded_s = max(self._loaded_s, now) + seconds
        return seconds

    def unload(self, adapter: Adapter) -> None:
        """Free the slots of an adapter; a request that still needs it loads it once more."""
        self._on_gpu.pop(adapter.number, None)
        self._in_host.pop(adapter.number, None)

    def held_back(self, waiting: Iterable[Sequence], running: Iterable[Sequence]) -> set[Sequence]:
        """Return the waiting sequences whose adapter no slot is left for, beside those of running and earlier ones."""
        active = {sequence.request.adapter for sequence in running}
        if not self._counts_base:
            active.discard(None)
        held = set()
        for sequence in waiting:
            adapter = sequence.request.adapter
            if adapter in active or (adapter is None and not self._counts_base):
                continue
            if len(active) < self.most:
                active.add(adapter)
            else:
                held.add(sequence)
        return held

    def step_s(self, step: Step, start_s: float) -> float:
        """Return what a step that starts now takes longer: loads, and the products of its adapters."""
        tokens: dict[Adapter, int] = {}
        ended = set(step.prompts_done)
        parts = [(one, chunk[0]) for one, chunk in zip(step.prefill_sequences, step.prefill, strict=True)]
        parts += [(one, one.computed - one.tokens + 1) for one in step.sequences if one not in ended]
        for sequence, new_tokens in parts:
            if (adapter := sequence.request.adapter) is not None:
                tokens[adapter] = tokens.get(adapter, 0) + new_tokens
        seconds = max(0.0, self._loaded_s - start_s)
        if tokens:
            there_first = sorted(tokens, key=lambda adapter: adapter.number not in self._on_gpu)
            seconds += sum([self._bring(adapter) for adapter in there_first])
            seconds += self._costs.step_s([(adapter.rank, count) for adapter, count in tokens.items()])
        return seconds

    def _bring(self, adapter: Adapter) -> float:
        """Make an adapter the most recently used of both memories; return the time of loading it."""
        number, gpu, host = adapter.number, self._on_gpu, self._in_host
        seconds = 0.0 if number in gpu else self._costs.load_s(adapter.rank, number not in host)
        for memory, most in ((host, self._most_in_host), (gpu, self.most)):
            memory[number] = None
            memory.move_to_end(number)
            if len(memory) > most:
                gone, _ = memory.popitem(last=False)
                gpu.pop(gone, None)
        return seconds


def names_of(sequences: Iterable[Sequence]) -> tuple[str, ...]:
    """Return the names of their adapters, each once."""
    found = [sequence.request.adapter for sequence in sequences]
    return tuple(dict.fromkeys(adapter.name for adapter in found if adapter is not None))

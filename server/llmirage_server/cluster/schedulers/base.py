"""The part of scheduling that all engines share: the queue, the batch, and the end of a step.

A scheduler forms one step after the other. `schedule` decides which tokens the next forward pass computes and takes their KV
memory; `complete` ends it: a sequence with all its known tokens computed produces one more (or several, with speculation). A
sequence is waiting, loading (its KV comes from an offload tier), running, or handed over (an instance of a prefill pool has
finished it, and its KV has not left yet). A running one is computing its prompt, or decodes in the batch. Preempting a
running sequence puts it back into the queue, to recompute its prompt and its output so far, except for what the prefix cache
still holds.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from array import array
from collections import OrderedDict, deque
from collections.abc import Iterable
from operator import attrgetter

from llmirage_server.cluster.kv.cache import KVCache
from llmirage_server.cluster.limits import EngineLimits, Role
from llmirage_server.cluster.request import Adapter, AdapterCosts, Request, Sequence
from llmirage_server.cluster.schedulers.batch import DecodeBatch, SequenceBatch, Step
from llmirage_server.cluster.schedulers.summed_batch import SummedBatch

_ADMISSION = attrgetter("admission")
_NOBODY: tuple[Request, ...] = ()


class Scheduler(ABC):
    """The waiting and the running sequences of one instance, or of one of its attention data-parallel ranks.

    reserves: whether it reserves memory for the tokens that sequences are expected to have in the end.
    counts_steps: whether it must be told of fast-forwarded steps (`pass_steps`).
    size: number of running sequences.
    holds_prompts: the next step computes no prompts (instances/ranks.py).
    """

    reserves = True
    counts_steps = False

    def __init__(
        self,
        limits: EngineLimits,
        kv: KVCache,
        role: Role = "both",
        *,
        stages: int = 1,
        summed: bool = False,
        adapters: AdapterSlots | None = None,
    ) -> None:
        """Create an empty scheduler.

        stages: with more than one, `schedule` may be called before the last step is completed.
        summed: use the summed decode batch (summed_batch.py); single tokens are not reported then.
        adapters: of requests that name one; not with sums.
        """
        self.kv = kv
        self.limits = limits
        self.batch: DecodeBatch = SummedBatch(kv, reserves=self.reserves) if summed else SequenceBatch(limits, kv, stages)
        self.adapters = adapters
        self.preemptions = 0
        self.prefix_query_tokens = 0
        self.prefix_hit_tokens = 0
        self._hands_over = role == "prefill"
        self._withholds = self._hands_over and limits.first_token != "prefill"
        self._shows_first = role == "decode" and limits.first_token == "admission"
        self._by_priority = limits.schedule_policy == "priority"  # an arrival may overtake waiting requests
        self._pipelined = stages > 1
        self._stages = stages
        self._summed = summed
        self._admissions = 0
        self._reset()

    def _reset(self) -> None:
        self.size = 0
        self.holds_prompts = False
        self.waiting: deque[Sequence] = deque()
        self.prefilling: dict[Sequence, None] = {}  # running, but not decoding yet; in the order of admission
        self._received: set[Sequence] = set()  # waiting ones with KV computed elsewhere
        self._handed_over: set[Sequence] = set()
        self._in_flight: set[Sequence] = set()  # the running ones in a step that is not completed, if there can be several
        self._blocked: Sequence | None = None  # head of the queue that did not fit
        self._blocked_at = 0  # `kv.changes` then

    @property
    def running(self) -> list[Sequence]:
        """Running sequences in the order of their admission, their own fields up to date."""
        decoding = self.batch.in_order()
        return sorted([*decoding, *self.prefilling], key=_ADMISSION) if self.prefilling else decoding

    @property
    def queue_length(self) -> int:
        """Number of sequences that wait in the queue or for their KV to be loaded."""
        return len(self.waiting) + len(self.kv.loading)

    def clear(self) -> None:
        """Drop all sequences and all KV after a crash. Counters are kept."""
        self.batch.clear()
        self.kv.clear()
        if self.adapters is not None:
            self.adapters.clear()
        self._reset()

    def add(self, sequence: Sequence) -> None:
        if self.reserves:
            request = sequence.request
            allowed = sequence.prompt_tokens + max(request.max_tokens, request.output_tokens)
            sequence.expected = min(allowed, self.limits.max_request_tokens, self.kv.capacity_tokens)
        self._enqueue(sequence)

    def receive(self, sequence: Sequence) -> None:
        """Queue a sequence whose KV, but for its last token's, was computed elsewhere and has arrived."""
        self._received.add(sequence)
        if self._shows_first and sequence.tokens + 1 < sequence.max_tokens:
            sequence.tokens += 1  # the prefill's, which was not shown
        self.add(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Remove a cancelled or transferred sequence at once. Its cached prefix stays."""
        if sequence.admission:
            if sequence not in self.prefilling:
                self.batch.refresh(sequence)
            self._drop(sequence)
        elif sequence in self._handed_over:
            self._handed_over.remove(sequence)
            self._drop(sequence)
        elif not self.kv.stop_load(sequence):
            self._received.discard(sequence)
            self.waiting.remove(sequence)

    def schedule(self, now: float) -> Step:
        """Form the step that starts at `now`.

        Empty if no sequence waits or runs, if all running ones are in flight, or if waiting ones do not fit beside KV that
        was handed over or is being loaded.
        """
        self.kv.now_s = now
        if self.kv.loading:
            for sequence in reversed(self.kv.take_loaded()):
                self._requeue(sequence)
        step = self._form(now) if self.adapters is None or not self.waiting else self._form_with(self.adapters, now)
        if step.running is not None:
            self.batch.begin(step)
        if self._pipelined:
            self._in_flight.update(step.sequences)
        return step

    def _form_with(self, adapters: AdapterSlots, now: float) -> Step:
        """Form a step as if sequences that find no slot for their adapter did not wait; others pass them."""
        waiting = self.waiting
        before = list(waiting)
        held = adapters.held_back(before, self.running)
        if not held:
            return self._form(now)
        waiting.clear()
        waiting.extend([sequence for sequence in before if sequence not in held])
        step = self._form(now)
        left = dict.fromkeys(waiting)
        preempted = left.keys() - set(before)
        waiting.clear()
        waiting.extend([sequence for sequence in before if sequence in held or sequence in left])
        for sequence in reversed([sequence for sequence in left if sequence in preempted]):
            self._requeue(sequence)
        return step

    def complete(self, step: Step, now: float, emitted: list[Request], handed_over: list[Request]) -> Iterable[Request]:
        """End a step, and add its outcome to the lists (see StepEnd); return the finished requests.

        An instance of role "prefill" hands over the sequences that have more to produce.
        """
        self.kv.now_s = now
        if self._pipelined:
            self._in_flight.difference_update(step.sequences)
        for sequence in step.prefill_sequences:  # a cancelled one has nothing computed any more
            self.kv.insert(sequence)
        computed_tokens, batch = 0, self.batch
        for sequence in step.prompts_done:
            if sequence.admission:
                del self.prefilling[sequence]
                request = sequence.request
                if not request.produced:
                    request.first_token_s = now
                    computed_tokens += sequence.prompt_tokens - request.cached_tokens
        for sequence in step.joined:
            if sequence.admission:
                sequence.request.note_first_token(now)
        done = batch.advance(step, now, emitted, self._hands_over)
        if done and self._withholds:
            self._withhold(done, emitted)
        if batch.gained:
            batch.counts.add_steps(batch.gained + computed_tokens)
        if not done:
            return _NOBODY
        if self._summed and step.prompts_done and len(done) > 1:
            done = self._in_order(step, done)
        finished = self._remove_done(done, now, handed_over)
        if self._summed:
            emitted += finished
        return finished

    def complete_run(self, now: float) -> Iterable[Request]:
        """End a fast-forward, all of whose steps are accounted for; return the finished requests."""
        self.kv.now_s = now
        done = self.batch.take_done()
        return self._remove_done(done, now, []) if done else _NOBODY

    @abstractmethod
    def _form(self, now: float) -> Step: ...

    def prompt_tokens(self) -> int:
        """Return the number of prompt tokens that the next step could compute beside all decodes."""
        raise NotImplementedError

    def _remove_done(self, done: list[Sequence], now: float, handed_over: list[Request]) -> list[Request]:
        """Remove finished sequences and, on prefill instances, those whose prompt is computed; return the finished."""
        finished = []
        self.size -= len(done)
        for sequence in done:
            sequence.admission = 0
            request = sequence.request
            if sequence.tokens < sequence.max_tokens or request.keeps_kv:
                self._handed_over.add(sequence)
                handed_over.append(request)
                if request.keeps_kv:
                    request.finished_s = now
            else:
                finished.append(request)
                request.finished_s = now
                self.kv.finish(sequence)
        return finished

    def _withhold(self, done: list[Sequence], emitted: list[Request]) -> None:
        """Take back the tokens of sequences that are handed over: the decode instance reports them."""
        recomputed = self.limits.first_token == "decode"
        for sequence in done:
            request = sequence.request
            if not request.keeps_kv and (recomputed or sequence.tokens < sequence.max_tokens):
                sequence.tokens -= 1
                request.produced -= 1
                if not request.produced:
                    request.first_token_s = math.nan
                if self._summed:
                    request.spans.pop()
                else:
                    emitted.remove(request)
                self.batch.gained -= 1

    def _in_order(self, step: Step, sequences: list[Sequence]) -> list[Sequence]:
        """Return sequences of a step in the order in which the engine runs them, that of `Step.sequences`."""
        return sorted(sequences, key=_ADMISSION)

    def _enqueue(self, sequence: Sequence) -> None:
        """Insert a new sequence into the queue by its policy."""
        self.waiting.append(sequence)

    def _requeue(self, sequence: Sequence) -> None:
        """Insert a preempted or loaded sequence ahead of the queue."""
        self.waiting.appendleft(sequence)

    def _drop(self, sequence: Sequence) -> None:
        """Release what a sequence holds that no longer runs."""
        if sequence.admission:
            if sequence in self.prefilling:
                del self.prefilling[sequence]
            else:
                self.batch.remove(sequence)
            sequence.admission = 0
            self.size -= 1
        self._in_flight.discard(sequence)
        self.kv.release(sequence)

    def _preempt(self, sequence: Sequence) -> None:
        """Return a running sequence, whose own fields are up to date, to the queue."""
        self._drop(sequence)
        self._requeue(sequence)
        self._count_preemption(sequence)

    def _count_preemption(self, sequence: Sequence) -> None:
        sequence.request.preemptions += 1
        self.preemptions += 1

    # --- steps that need not be formed one by one ---

    def steady_steps(self, now: float) -> int:
        """Return how many steps from now on only decode: none admits, preempts, or finishes a sequence before the last ends.

        0: the next step has to be formed. Without a batch it is a very large number. The caller ensures that no request
        arrives meanwhile that might be admitted (`notices_arrivals`), and that no load ends (`kv.next_load_s`).
        """
        if self.prefilling or (self.waiting and self._may_admit()) or (self.kv.loading and self.kv.next_load_s <= now):
            return 0
        return self.batch.steady_steps()

    def pass_steps(self, steps: int) -> None:  # noqa: B027 (optional hook)
        """Account for `steps` fast-forwarded steps in which all sequences decoded."""

    @property
    def notices_arrivals(self) -> bool:
        """True if an arriving request might be admitted, or change anything, before another finishes."""
        return (not self.waiting or self._by_priority) and self.size < self.limits.max_num_seqs

    def _may_admit(self) -> bool:
        """Return whether a step in which all running sequences decode could admit a waiting one."""
        return (
            self.size < self.limits.max_num_seqs
            and self.size < self.limits.max_num_batched_tokens
            and not (self._blocked is self.waiting[0] and self._blocked_at == self.kv.changes)
        )

    # --- parts of a step, for `_form` ---

    def _running(self, step: Step) -> list[Sequence]:
        """Return `running` as first read in this step: sequences preempted since then are still included."""
        if step.running is None:
            step.running = self.running
        return step.running

    def _add_chunk(self, step: Step, sequence: Sequence, new_tokens: int) -> None:
        """Add `new_tokens` of a prompt, whose KV has been allocated, to the step."""
        step.prefill.append((new_tokens, sequence.computed - new_tokens))
        step.prefill_sequences.append(sequence)
        if sequence.computed == sequence.tokens:
            step.prompts_done.append(sequence)
            step.sequences.append(sequence)

    def _loads(self, sequence: Sequence) -> bool:
        """Start the load of a waiting sequence if a tier has more of its KV than the GPU; True: it has left the queue."""
        if sequence in self._received or not self.kv.tiered or not self.kv.start_load(sequence):
            return False
        self.waiting.remove(sequence)
        return True

    def _start(self, step: Step, sequence: Sequence, new_tokens: int, now: float) -> None:
        """Admit an acquired sequence with the first `new_tokens` of its missing tokens, for which there is room."""
        if sequence in self._received:
            self._join(step, sequence, now)
            self.kv.allocate(sequence, 1)
            self.batch.decode(step, sequence)
            return
        self.waiting.remove(sequence)
        self.size += 1
        self._admissions = sequence.admission = self._admissions + 1
        request, computed = sequence.request, sequence.computed
        if request.admitted_s != request.admitted_s:  # NaN
            request.admitted_s = now
            request.cached_tokens = computed
            self.prefix_query_tokens += sequence.prompt_tokens
            self.prefix_hit_tokens += computed
        self.kv.allocate(sequence, new_tokens)
        self.prefilling[sequence] = None
        step.prefill.append((new_tokens, computed))
        step.prefill_sequences.append(sequence)
        if computed + new_tokens == sequence.tokens:
            step.prompts_done.append(sequence)
            step.sequences.append(sequence)

    def _join(self, step: Step, sequence: Sequence, now: float) -> None:
        """Admit an acquired sequence whose KV was computed elsewhere, to decode."""
        request = sequence.request
        request.joined_s = now
        if not request.produced and request.admitted_s != request.admitted_s:  # NaN: another request was the prefill
            request.admitted_s = now
            request.cached_tokens = min(sequence.tokens - 1, sequence.prompt_tokens)
            request.external_tokens = request.cached_tokens - sequence.computed
            self.prefix_query_tokens += sequence.prompt_tokens
            self.prefix_hit_tokens += sequence.computed
        if self.limits.first_token != "prefill" or not request.produced:
            step.joined.append(sequence)
        if sequence.tokens > sequence.prompt_tokens + request.produced:
            request.produced += 1
            request.note_first_token(now)
            if self._summed:
                request.spans.append((array("d", (now,)), 0, 0))
        self._received.remove(sequence)
        self.waiting.remove(sequence)
        self.size += 1
        self._admissions = sequence.admission = self._admissions + 1
        self.kv.allocate(sequence, sequence.tokens - 1 - sequence.computed)
        self.kv.insert(sequence)
        self.batch.join(sequence)

    # --- memory, in tokens of whole pages ---

    @property
    def _available(self) -> int:
        """Capacity that is free, or could be by evicting."""
        return self.kv.room_tokens

    def _needs(self, sequence: Sequence, tokens: int) -> int:
        """Return the tokens a sequence needs, beyond those it holds, to have `tokens` tokens computed."""
        page = self.kv.page_size
        return (-(-tokens // page) - -(-sequence.computed // page)) * page


class AdapterSlots:
    """LoRA adapters of one scheduler: which may run together, where their weights are, and what they add to its steps.

    The rules are vLLM's: at most `max_loras` adapters in a batch, each with a slot in GPU memory; `max_cpu_loras` in the
    host's; both least recently used first. What is not there is loaded before the step that needs it. SGLang's scheduler
    counts requests without an adapter as one more (max_loras_per_batch).
    """

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

"""One model replica with continuous batching: schedulers, their KV caches, and the clock of their steps."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence as Seq
from typing import cast

from llmirage_server.cluster.instances.arrivals import ArrivalQueue, FrontEnd
from llmirage_server.cluster.instances.base import InstanceBase
from llmirage_server.cluster.instances.fast_forward import FastForward
from llmirage_server.cluster.instances.ranks import Ranks
from llmirage_server.cluster.kv.cache import KVCache, make_kv_cache
from llmirage_server.cluster.kv.offload import Tier, TierSpec
from llmirage_server.cluster.limits import EngineLimits, Role
from llmirage_server.cluster.request import Adapter, AdapterCosts, AdapterReading, Request, Sequence, StepEnd
from llmirage_server.cluster.schedulers import Scheduler, Step
from llmirage_server.cluster.schedulers.base import AdapterSlots
from llmirage_server.cluster.snapshots import InstanceSnapshot, Reading, StepCounts, StepSpan, TierSnapshot
from llmirage_server.perf.steps.steady import StepSums
from llmirage_server.perf.steps.step_model import GroupStepModel, StepBatch, StepModel


class Instance(InstanceBase):
    """Steps follow each other without a gap while there is work; the first one starts when work arrives.

    A step that starts at t is formed when time has moved past t, so that everything that arrives or is cancelled at t
    counts, in whatever order and however often the caller advances. `next_event_s` is then the first instant after t.

    Attention data parallelism: a step model with `ranks` makes as many schedulers, each with `limits` and a KV cache of its
    own. A request is placed on a rank when it arrives. Their steps run in lockstep: the slowest paces all, and who has
    nothing to do runs along.

    Pipeline: with `stages` of the step model, as many steps are in flight. A step is formed when the first stage is free and
    a slot is, from the sequences that are in no other (only chunks of one prompt follow each other closely). A stage works
    on it when the stage before has finished with it and this one has finished the step before. Nothing balances the steps:
    sequences that were scheduled together stay together, as in vLLM. TensorRT-LLM has slots (schedulers/trtllm.py).

    tiers, kv_bytes_per_token: KV offload of the whole instance, a store of all last, see `cluster/kv/offload.py`.
    front_end: how much later a submitted request comes to the scheduler; a number: seconds, the same for all.
    fast_forward: for simulations: `advance` tells of requests that have finished, not of single tokens, whose times are in
        `Request.spans`. Steady decoding is followed in one go, and what can be read may be behind until `sync_to`. All times
        are those of step-by-step execution. Draft tokens and pipelines are followed step by step all the same: sequences
        gain different numbers of tokens, or are in different steps at a time, which no common sum tells. So are adapters.
    adapter_costs, adapters: of LoRA adapters, where `limits` allow some, and those that are loaded at the start.
    """

    def __init__(
        self,
        index: int,
        step_model: StepModel | GroupStepModel,
        limits: EngineLimits,
        role: Role = "both",
        *,
        tiers: Seq[TierSpec | Tier] = (),
        kv_bytes_per_token: float = 0.0,
        front_end: FrontEnd | float = 0.0,
        fast_forward: bool = False,
        adapter_costs: AdapterCosts | None = None,
        adapters: Seq[Adapter] = (),
    ) -> None:
        super().__init__(index, limits, role)
        front = FrontEnd(front_end) if isinstance(front_end, (int, float)) else front_end
        ranks: int = getattr(step_model, "ranks", 1)
        self._stages: int = getattr(step_model, "stages", 1)
        self._step_model = step_model
        self._group = cast(GroupStepModel, step_model) if ranks > 1 or self._stages > 1 else None
        # By sums, or sequence by sequence: it is decided here and nowhere else.
        self._arrivals = ArrivalQueue(limits, front, self._stages > 1)
        may_sum = fast_forward and not limits.num_speculative_tokens and not limits.max_loras
        sums: StepSums | None = getattr(step_model, "sums", None) if may_sum else None
        caches = [make_kv_cache(limits, [tier.share(ranks) for tier in tiers], kv_bytes_per_token) for _ in range(ranks)]

        def slots() -> AdapterSlots | None:
            if adapter_costs is None or not limits.max_loras:
                return None
            return AdapterSlots(limits, adapter_costs, adapters)

        self._ranks = Ranks(limits, caches, role, stages=self._stages, summed=sums is not None, adapters=slots)
        self._slots = self._ranks.slots()
        self.schedulers = self._ranks.schedulers
        self._tiered = bool(tiers)
        self._run = FastForward(self._ranks, sums) if sums is not None else None
        self._busy_s = 0.0
        self.trace: list[StepSpan] | None = None  # steps are written down here, if a trace is wanted
        self._reset()

    def _reset(self) -> None:
        self._arrivals.clear()
        self._sequences: dict[Request, tuple[Scheduler, Sequence]] = {}  # in order of arrival
        self._in_flight: deque[tuple[float, list[Step]]] = deque()  # steps in the pipeline and their ends; the oldest first
        self._free_s = [-math.inf] * self._stages  # when each stage has finished with the last step
        self._start_s = -math.inf  # when the next step may start
        self._stalled = False  # nothing can be scheduled until an event

    @property
    def fast_forward(self) -> bool:
        """True if steady decoding is fast-forwarded."""
        return self._run is not None

    # --- the interface of InstanceBase ---

    def match(self, key: bytes) -> int:
        return self._ranks.match(key)

    @property
    def kv_used_tokens(self) -> int:
        return self._ranks.used_tokens

    @property
    def kv_total_tokens(self) -> int:
        return self._ranks.capacity_tokens

    def submit(self, request: Request, now: float) -> None:
        scheduler, sequence = self._place(request, now)
        arrival_s = request.arrival_s
        self.front_end_free_s(now)
        # NaN: it was submitted here alone
        seen_s = self._arrivals.passed_on_s(arrival_s if arrival_s == arrival_s else now, sequence.prompt_tokens)
        seen_s = max(seen_s, now)  # it may come from an instance that is gone
        if seen_s > now or self._arrivals.last_poll_s < now:
            self._arrivals.add(seen_s, scheduler, sequence)
        else:
            self._wake(now)
            scheduler.add(sequence)
        self._schedule_next_event()

    def receive(self, request: Request, now: float) -> None:
        self._wake(now)
        scheduler, sequence = self._place(request, now)
        scheduler.receive(sequence)
        self._schedule_next_event()

    def front_end_free_s(self, now: float) -> float:
        if self._arrivals.sends_tokens and self._run is not None and self._run.steps:
            self._send_run(self._run, self._run.progress(now)[1])
        return self._arrivals.free_s

    def release_transferred(self, request: Request, now: float) -> None:
        self.cancel(request, now)

    def cancel(self, request: Request, now: float) -> None:
        self._wake(now)
        scheduler, sequence = self._sequences.pop(request)
        if not self._arrivals.remove(sequence):
            scheduler.remove(sequence)
        self._count(now)
        self._schedule_next_event()

    def evacuate(self, now: float) -> list[Request]:
        lost = list(self._sequences)
        for scheduler in self.schedulers:
            scheduler.clear()
        if self._run is not None:
            self._run.steps = 0
        self._reset()
        self._count(now)
        self._schedule_next_event()
        return lost

    def clear_cache(self, now: float) -> None:
        self._cut_run(now)  # a waiting sequence may fit now
        for scheduler in self.schedulers:
            scheduler.kv.forget_idle()
        self._schedule_next_event()

    def sync_to(self, now: float) -> None:
        run = self._run
        if run is not None and run.steps:
            self._busy_s += run.account(*run.progress(now), self.trace)

    def advance(self) -> StepEnd | None:
        run = self._run
        if run is not None and run.steps:
            return self._end_run(run)
        in_flight = self._in_flight
        if len(in_flight) < self._stages:
            now = self.next_event_s
            if self._arrivals.next_s <= now:
                self._wake(now)
                self._schedule_next_event()
                return None
            if not in_flight or in_flight[0][0] > now:
                start_s = self._next_start_s()
                if run is not None and run.begin(start_s):
                    self._arrivals.busy(start_s)
                    self._schedule_next_event()
                else:
                    return self._form(start_s)
                return None
        end_s, steps = in_flight.popleft()
        return self._end_step(end_s, steps)

    def batches(self) -> list[StepBatch]:
        """Return the batch of the step in flight, by rank; empty if there is none. Sums are shown as equal contexts."""
        if self._run is not None and self._run.steps:
            return [StepBatch((), scheduler.batch.contexts(None)) for scheduler in self.schedulers]
        if not self._in_flight:
            return []
        ranks = zip(self.schedulers, self._in_flight[-1][1], strict=True)
        return [StepBatch(step.prefill, scheduler.batch.contexts(step)) for scheduler, step in ranks]

    @property
    def kv_caches(self) -> list[KVCache]:
        return [scheduler.kv for scheduler in self.schedulers]

    @property
    def loading(self) -> int:
        return sum([len(scheduler.kv.loading) for scheduler in self.schedulers])

    def load_adapter(self, adapter: Adapter, now: float) -> float:
        return max([slots.load(adapter, now) for slots in self._slots], default=0.0)

    def unload_adapter(self, adapter: Adapter) -> None:
        for slots in self._slots:
            slots.unload(adapter)

    @property
    def adapters(self) -> AdapterReading | None:
        return self._ranks.adapter_reading([entry[2] for entry in self._arrivals.entries]) if self._slots else None

    def step_counts(self) -> StepCounts:
        return self._ranks.counts

    def tier_snapshots(self) -> tuple[TierSnapshot, ...]:
        return self._ranks.tier_snapshots()

    def reading(self) -> Reading:
        return self._ranks.reading(self.running, self.waiting, self._busy_s, self._ran_s, self._stayed_s)

    def rank_snapshots(self) -> list[InstanceSnapshot]:
        return self._ranks.snapshots(self.snapshot(), [entry[1:] for entry in self._arrivals.entries])

    # --- time ---

    def _schedule_next_event(self) -> None:
        """Set `next_event_s`. Requests that arrive during a step are seen at its end."""
        run, in_flight = self._run, self._in_flight
        if run is not None and run.steps:
            if self._arrivals.entries or self._tiered:
                self._find_event(run)
            self.next_event_s = run.event_s
        elif len(in_flight) == self._stages:
            self.next_event_s = in_flight[0][0]
        else:
            event_s = math.nextafter(self._next_start_s(), math.inf)
            if in_flight:
                event_s = min(event_s, in_flight[0][0])
            elif event_s == math.inf:
                self._arrivals.idle()
            self.next_event_s = min(event_s, max(self._arrivals.next_s, self._start_s))

    def _find_event(self, run: FastForward) -> None:
        """Set the event of a run that an arrival or the end of a KV load may interrupt."""
        loaded_s = min([scheduler.kv.next_load_s for scheduler in self.schedulers]) if self._tiered else math.inf
        for seen_s, scheduler, _ in self._arrivals.entries:
            if scheduler.notices_arrivals:
                run.find_event(seen_s, self._arrivals)
                if loaded_s < run.event_s:
                    run.find_event(loaded_s)
                return
        run.find_event(loaded_s)

    def _next_start_s(self) -> float:
        """Return when the next step starts if there is a slot; inf if it waits for the end of a step in flight, or work."""
        if self._stalled:
            return max(self._start_s, min([scheduler.kv.next_load_s for scheduler in self.schedulers]))
        return self._start_s if self.unfinished > len(self._arrivals.entries) else math.inf

    def _wake(self, now: float) -> None:
        """Handle a change at `now`: sequences that could not be scheduled may be so now."""
        self._arrivals.take(now)
        self._cut_run(now)
        self._start_s = max(self._start_s, now)
        self._stalled = False

    def _form(self, start_s: float) -> StepEnd | None:
        """Form a step and start it, or stall; set `next_event_s`. Return the first tokens reported at its start."""
        steps = self._ranks.schedule(start_s)
        running, decodes, prompts = 0, 0, False
        for rank, step in enumerate(steps):
            running += self.schedulers[rank].size
            decodes += step.decodes
            prompts = prompts or bool(step.prefill)
        empty = not (decodes or prompts)
        if running != self.running:
            self._ran_s -= (running - self.running) * start_s
            self.running = running
        self.load = 4 * self.unfinished - 3 * running
        self._start_s, self._stalled = start_s, empty
        if empty:
            self._schedule_next_event()
            return None
        if not self._arrivals.at_once:
            self._arrivals.step_begins(start_s, prompts)
        in_flight = self._in_flight
        adapters_s = 0.0
        if self._slots:
            adapters_s = max([slots.step_s(step, start_s) for slots, step in zip(self._slots, steps, strict=True)])
        if self._run is not None:
            self._start_s = end_s = start_s + self._run.step_s(steps)
        elif self._group is None:
            step_s = self._step_model.step_s(steps[0].prefill, steps[0].decode_contexts)
            self._start_s = end_s = start_s + step_s + adapters_s
        else:
            end_s, free_s = start_s, self._free_s
            seconds = self._group.stages_s([StepBatch(step.prefill, step.decode_contexts) for step in steps])
            for stage in range(self._stages):
                free_s[stage] = end_s = max(end_s, free_s[stage]) + seconds[stage] + adapters_s / self._stages
            self._start_s = free_s[0]
        # The GPUs of a pipeline wait while other stages have the batch.
        self._busy_s += end_s - start_s if self._stages == 1 else sum(seconds) / self._stages
        in_flight.append((end_s, steps))
        if self._stages == 1:
            self.next_event_s = end_s
        else:
            self._schedule_next_event()
        if self.trace is not None:
            chunks = [chunk[0] for step in steps for chunk in step.prefill]
            self.trace.append(StepSpan(start_s, end_s, 1, sum(chunks), decodes))
        shown = self._ranks.first_tokens(steps)
        return StepEnd(start_s, self.index, shown) if shown else None

    def _end_step(self, now: float, steps: list[Step]) -> StepEnd | None:
        self._arrivals.step_ends(now)
        emitted: list[Request] = []
        handed_over: list[Request] = []
        gone = gained = tokens = 0
        for rank, step in enumerate(steps):  # takes less time than a strict zip
            scheduler = self.schedulers[rank]
            for request in scheduler.complete(step, now, emitted, handed_over):
                del self._sequences[request]
                gone += 1
            gained += scheduler.batch.gained
        if self._arrivals.sends_tokens:
            self._arrivals.send((now,), gained)
        if handed_over:
            gone += len(handed_over)
        if self._run is not None:
            self._start_next_run(self._run, now, gone)
        else:
            if gone:
                self._count(now)
            self._start_s, self._stalled = max(now, self._free_s[0]), False
            self._schedule_next_event()
            tokens = gained if gained > len(emitted) else 0
        if emitted or handed_over or (gained and self.role == "decode"):
            return StepEnd(now, self.index, emitted, handed_over, tokens)
        return None

    # --- with sums ---

    def _end_run(self, run: FastForward) -> StepEnd | None:
        now, over = run.event_s, run.event_steps
        if not over:
            run.time_more()
            run.find_event(math.inf)
            self._schedule_next_event()
            return None
        self._send_run(run, over)
        self._arrivals.run_ends(run.start_s, run.ends_s, over)
        self._busy_s += run.account(over, over, self.trace)
        emitted: list[Request] = []
        steps, run.steps = run.steps, 0
        if over == steps:
            for scheduler in self.schedulers:
                emitted += scheduler.complete_run(now)
            for request in emitted:
                del self._sequences[request]
        self._start_next_run(run, now, len(emitted))
        return StepEnd(now, self.index, emitted) if emitted or self.role == "decode" else None

    def _start_next_run(self, run: FastForward, now: float, gone: int) -> None:
        """Start the next fast-forward if the batch is steady, after a step or run with which `gone` requests finished.

        Nothing of a run is accounted for before time passes. Any other step is formed after all other events of this moment:
        another instance may end a step now, and a router then reads the running requests here.
        """
        if gone:
            self.running -= gone
            self.unfinished -= gone
            self.load -= gone
            self._ran_s += gone * now
            self._stayed_s += gone * now
        self._start_s = now
        self._stalled = False
        if run.begin(now):
            self._arrivals.busy(now)
            if self._arrivals.entries or self._tiered:
                self._find_event(run)
            self.next_event_s = run.event_s
            return
        self._schedule_next_event()

    def _send_run(self, run: FastForward, over: int) -> None:
        """Pass the tokens of the first `over` steps of a run to the front end."""
        if self._arrivals.sends_tokens:
            self._arrivals.send(run.ends_s[run.sent : over], sum([batch.decodes for batch in run.decoding]))
            run.sent = over

    def _cut_run(self, now: float) -> None:
        """End the run with the step in flight, after a change at `now`."""
        run = self._run
        if run is None or not run.steps:
            return
        begun, over = run.progress(now)
        self._send_run(run, over)
        self._busy_s += run.account(begun, over, self.trace)
        run.cut()
        if run.steps:
            run.find_event(math.inf)
        else:
            self._start_s = now  # when its last step has ended

    # --- requests ---

    def _place(self, request: Request, now: float) -> tuple[Scheduler, Sequence]:
        """Choose a rank for a request, and count it."""
        request.stream, sequence, rank = self.limits.stream, Sequence(request), 0
        if request.rank >= 0:
            rank = request.rank % len(self.schedulers)
        elif len(self.schedulers) > 1:
            if self._ranks.reads_kv:
                self.sync_to(now)
            rank = self.schedulers.index(self._ranks.choose(sequence, [entry[1] for entry in self._arrivals.entries]))
        request.at_rank, scheduler = rank, self.schedulers[rank]
        placed = self._sequences[request] = scheduler, sequence
        self.unfinished += 1
        self._stayed_s -= now
        self.load += 4
        return placed

    def _count(self, now: float) -> None:
        """Recount the requests."""
        running, unfinished = self.running, self.unfinished
        self.running = sum([scheduler.size for scheduler in self.schedulers])
        queued = sum([scheduler.queue_length for scheduler in self.schedulers])
        self.unfinished = self.running + queued + len(self._arrivals.entries)
        self._ran_s += (running - self.running) * now
        self._stayed_s += (unfinished - self.unfinished) * now
        self.load = 4 * self.unfinished - 3 * self.running

"""Settings that hold prompts back so that other sequences decode or prompts of several ranks meet. Off by default.

A gate reads all ranks before a step is formed and decides which hold their prompts (`Scheduler.holds_prompts`). None does if
nothing else is left to compute.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from llmirage_server.cluster.limits import EngineLimits
from llmirage_server.cluster.schedulers import Scheduler, Step


def make_gate(limits: EngineLimits, schedulers: Sequence[Scheduler]) -> PromptGate | None:
    """Return the gate that the limits ask for; None: prompts are computed as soon as possible."""
    ranks = len(schedulers) > 1
    if limits.prefill_decode_interval:
        return DecodesBetween(limits, schedulers)
    if limits.prefill_schedule_interval > 1 and ranks:
        return EveryNthStep(limits, schedulers)
    if limits.attention_dp_enable_balance and ranks:
        return PromptsOnAllRanks(limits, schedulers)
    if limits.batch_wait_timeout_iters and limits.batch_wait_max_tokens_ratio and not ranks:
        return FullerSteps(limits, schedulers)
    return None


class PromptGate(ABC):
    """A gate over the schedulers of one instance. forms_all: it must see every step, also those that only decode."""

    forms_all = False

    def __init__(self, limits: EngineLimits, schedulers: Sequence[Scheduler]) -> None:
        self._limits = limits
        self._schedulers = schedulers

    def schedule(self, now: float) -> list[Step]:
        """Form the step that starts at `now`, of every rank."""
        schedulers = self._schedulers
        self._hold()
        steps = [scheduler.schedule(now) for scheduler in schedulers]
        if not any(step.prefill or step.decodes for step in steps):
            for scheduler in schedulers:
                scheduler.holds_prompts = False
            steps = [scheduler.schedule(now) for scheduler in schedulers]
        self._formed(steps)
        return steps

    @abstractmethod
    def _hold(self) -> None:
        """Decide which ranks hold their prompts in the next step."""

    def _formed(self, steps: Sequence[Step]) -> None:  # noqa: B027 (optional hook)
        """Note the step that was formed."""

    def pass_steps(self, steps: int) -> None:  # noqa: B027 (optional hook)
        """Account for `steps` fast-forwarded steps: all sequences decoded, and no prompt could be computed."""

    def _all_hold(self, hold: bool) -> None:
        for scheduler in self._schedulers:
            scheduler.holds_prompts = hold

    def _decoding(self) -> list[int]:
        """Return how many sequences could decode, by rank."""
        return [scheduler.batch.ready() for scheduler in self._schedulers]


class DecodesBetween(PromptGate):
    """SGLang's prefill_decode_interval: steps without prompts after each step with prompts on any rank.

    srt/managers/scheduler.py: _should_defer_prefill, _arm_prefill_decode_interval.
    """

    _left = 0

    def _hold(self) -> None:
        if not any(self._decoding()):
            self._left = 0  # empty steps take no time
        self._all_hold(self._left > 0)
        self.pass_steps(1)

    def _formed(self, steps: Sequence[Step]) -> None:
        if any(step.prefill for step in steps):
            self._left = self._limits.prefill_decode_interval

    def pass_steps(self, steps: int) -> None:
        self._left = max(0, self._left - steps)


class EveryNthStep(PromptGate):
    """vLLM's prefill_schedule_interval with data parallelism: prompts in every n-th step since the ranks were idle.

    A rank that decodes nothing does not wait, nor one whose queue was not emptied by the last step that did not hold its
    prompts.
    vllm/v1/engine/core.py: _should_throttle_prefills; core/sched/scheduler.py: defer_prefills, prefill_capacity_bound.
    """

    forms_all = True
    _steps = 0

    def __init__(self, limits: EngineLimits, schedulers: Sequence[Scheduler]) -> None:
        super().__init__(limits, schedulers)
        self._backlog = [False] * len(schedulers)

    def _hold(self) -> None:
        if not any(scheduler.size for scheduler in self._schedulers):
            self._steps = 0
        throttled = self._steps % self._limits.prefill_schedule_interval != 0
        for scheduler, backlog, decoding in zip(self._schedulers, self._backlog, self._decoding(), strict=True):
            scheduler.holds_prompts = throttled and not backlog and decoding > 0
        self._steps += 1

    def _formed(self, steps: Sequence[Step]) -> None:
        for rank, scheduler in enumerate(self._schedulers):
            if not scheduler.holds_prompts:
                self._backlog[rank] = bool(scheduler.waiting)


class PromptsOnAllRanks(PromptGate):
    """TensorRT-LLM's attention_dp_config with enable_balance: prompts are computed when every rank has some.

    If all ranks have prompts and all decode, they wait for `batching_wait_iters` further steps, in which others may arrive.
    If some ranks have none, the others wait for theirs up to `timeout_iters`. No rank waits while one has nothing to decode.
    _torch/pyexecutor/py_executor.py: _balance_adp_requests.
    """

    _waited = 0  # steps without prompts on all ranks
    _batched = 0  # steps since all had some

    def _hold(self) -> None:
        decoding = self._decoding()
        if max(decoding) < self._limits.max_num_seqs and all(each.prompt_tokens() for each in self._schedulers):
            self._waited = 0
            if not all(decoding):
                self._all_hold(False)
                return
            hold = self._batched < self._limits.attention_dp_batching_wait_iters
            self._batched = self._batched + 1 if hold else 0
            self._all_hold(hold)
        else:
            self.pass_steps(1)
            self._all_hold(self._waited > 0)

    def pass_steps(self, steps: int) -> None:
        timeout = self._limits.attention_dp_timeout_iters
        self._waited = (self._waited + steps) % timeout if timeout and all(self._decoding()) else 0


class FullerSteps(PromptGate):
    """TensorRT-LLM's batch_wait_timeout_iters and batch_wait_max_tokens_ratio, without attention data parallelism.

    While others decode, prompts wait for this many steps unless a step with them has that share of max_num_batched_tokens.
    _torch/pyexecutor/py_executor.py: _waiting_requests.
    """

    _waited = 0

    def _hold(self) -> None:
        [scheduler], [decoding], limits = self._schedulers, self._decoding(), self._limits
        prompts = scheduler.prompt_tokens() if decoding else 0
        hold = False
        if prompts:
            tokens = prompts + decoding * (1 + limits.num_speculative_tokens)
            full = tokens >= limits.batch_wait_max_tokens_ratio * limits.max_num_batched_tokens
            hold = not full and self._waited < limits.batch_wait_timeout_iters
            self._waited = self._waited + 1 if hold else 0
        self._all_hold(hold)

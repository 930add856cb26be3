"""A list of operations that run one after the other, evaluated fast and explained in full."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from llmirage_server.perf.kernels.kernel import Bound, TokenKernel, Work
from llmirage_server.perf.steps.load import Load
from llmirage_server.perf.steps.operations import COUNTS, DecodeOp, Op, PrefillOp, TokenOp

_REMEMBERED = 8192  # counts whose time is kept


@dataclass(frozen=True, slots=True)
class OperationTime:
    """One line of a step's explanation. Times and amounts are those of one GPU, all calls together."""

    name: str
    calls: int  # times per step, e.g. once a layer
    seconds: float
    flops: float = 0.0
    bytes: float = 0.0  # through GPU memory, or through the link
    ideal_s: float = 0.0  # at the datasheet's rates
    bound: Bound = "launch"


class _Sum:
    """Seconds of several kernels that depend on the same count."""

    __slots__ = ("_calls", "_known")

    def __init__(self, ops: Iterable[TokenOp]) -> None:
        self._calls: list[tuple[int, TokenKernel]] = [(op.calls, op.kernel) for op in ops]
        self._known: dict[int, float] = {}

    def __call__(self, count: int) -> float:
        if not self._calls or not count:
            return 0.0
        known = self._known.get(count)
        if known is None:
            known = sum([calls * kernel.seconds(count) for calls, kernel in self._calls])
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[count] = known
        return known


class Stage:
    """Operations on one rank. Calls from several threads are safe: what is remembered never differs."""

    def __init__(self, ops: Iterable[Op]) -> None:
        self.ops = tuple(ops)
        by_count = {count: [op for op in self.ops if isinstance(op, TokenOp) and op.count == count] for count in COUNTS}
        self.all_tokens_s, self._new, self._expanded = (_Sum(by_count[c]) for c in ("tokens", "new", "expanded"))
        self.decode_tokens_s, self._sequences, self._rows = (
            _Sum(by_count[c]) for c in ("decode_tokens", "sequences", "rows")
        )
        self.shared_s = _Sum(by_count["group"])  # seconds of what all ranks do together, from the tokens of all
        self._prefills = [(op.calls, op.kernel.seconds, op.window) for op in self.ops if isinstance(op, PrefillOp)]
        self._decoding = [
            (op.calls, op.calls * op.mixed, op.kernel.seconds, op.window) for op in self.ops if isinstance(op, DecodeOp)
        ]

    def local_s(self, load: Load) -> float:
        """Seconds of what the rank does by itself."""
        total = self.all_tokens_s(load.tokens) + self.all_sequences_s(load.rows, load.sequences)
        if load.new:
            total += self.prompts_s(load.new, load.context, load.prefill)
        if load.decodes:
            decodes_s = self.decode_tokens_s(load.decode_tokens)
            for calls, mixed, decode, window in self._decoding:
                decodes_s += (mixed if load.new else calls) * decode(*load.decode(window))
            total += decodes_s
        return total

    def all_sequences_s(self, rows: int, sequences: int) -> float:
        """Seconds of what is done once for each sequence, decoding or not, or for each row of logits."""
        return self._rows(rows) + self._sequences(sequences)

    def prompts_s(self, new: int, context: int, sums: Callable[[int], tuple[int, int, int, int]]) -> float:
        """Seconds of what is done for the prompt chunks alone, with so many new tokens behind those of their contexts.

        sums: the arguments of PrefillKernel for each window, as Load.prefill gives them.
        """
        total = self._new(new) + self._expanded(new + context)
        for calls, prefill, window in self._prefills:
            total += calls * prefill(*sums(window))
        return total

    @property
    def decode_ops(self) -> list[DecodeOp]:
        return [op for op in self.ops if isinstance(op, DecodeOp)]

    def explain(self, load: Load, group_tokens: int, scale: float) -> list[OperationTime]:
        """Every operation that takes time; with `scale` 1 the seconds add up to local_s + shared_s."""
        times = []
        for op in self.ops:
            work, calls = _work(op, load, group_tokens), op.calls
            if work is None:
                continue
            mixed = op.mixed if isinstance(op, DecodeOp) and load.new else 1.0
            seconds = calls * work.seconds * mixed * scale
            amounts = calls * work.flops, calls * work.bytes, calls * work.ideal_s
            times.append(OperationTime(op.name, calls, seconds, *amounts, work.bound))
        return times


def _work(op: Op, load: Load, group_tokens: int) -> Work | None:
    if isinstance(op, PrefillOp):
        return op.kernel.work(*load.prefill(op.window)) if load.new else None
    if isinstance(op, DecodeOp):
        return op.kernel.work(*load.decode(op.window)) if load.decodes else None
    if op.count == "group":
        count = group_tokens
    elif op.count == "expanded":
        count = load.new + load.context if load.new else 0
    else:
        count = getattr(load, op.count)
    return op.kernel.work(count) if count else None


def merged(times: Iterable[OperationTime]) -> list[OperationTime]:
    """Operations of the same name as one line, bound by what bounds the longest of them; longest line first."""
    lines: dict[str, OperationTime] = {}
    longest: dict[str, float] = {}
    for t in times:
        known = lines.get(t.name)
        if known is None:
            lines[t.name], longest[t.name] = t, t.seconds
            continue
        bound = t.bound if t.seconds > longest[t.name] else known.bound
        longest[t.name] = max(longest[t.name], t.seconds)
        lines[t.name] = OperationTime(
            t.name,
            known.calls + t.calls,
            known.seconds + t.seconds,
            known.flops + t.flops,
            known.bytes + t.bytes,
            known.ideal_s + t.ideal_s,
            bound,
        )
    return sorted(lines.values(), key=lambda line: -line.seconds)

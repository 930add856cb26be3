"""Operations that run one after the other on a rank's batch, evaluated fast and explained in full; the host's part."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import NamedTuple, TypeVar

from llmirage_server.perf.engines.engine import Engine
from llmirage_server.perf.kernels.attention import causal_pairs
from llmirage_server.perf.kernels.kernel import Bound
from llmirage_server.perf.parallelism import Parallelism
from llmirage_server.perf.steps.operations import COUNTS, Count, DecodeOp, Op, PrefillOp, TokenOp

_QUERY_BLOCK = 128  # a block of queries sees the window of its first query and the diagonal
MEAN_TOKENS = 16  # resolution of decode attention: a page of the mean context
LONGEST_TOKENS = 64  # and four pages of the longest one, which matters less
_MEAN_MIDDLE, _LONGEST_MIDDLE = (MEAN_TOKENS - 1) / 2, (LONGEST_TOKENS - 1) / 2

Chunks = tuple[tuple[int, int], ...]
"""(new tokens, context tokens) of each prompt chunk."""

DecodeLoad = tuple[int, ...]
"""Decoding sequences as attention sees them: how many, the page of their mean context, the page of the longest one.

Where a context is shorter than a window, every window adds two numbers, the narrowest first: the sum of all contexts clipped
to it, and the longest. Without decoding sequences it is ().
"""

DecodeArguments = tuple[int, float, float]
"""(sequences, context sum, longest context) of DecodeAttention."""


def decode_load(sequences: int, context_sum: int, longest: int, clipped: tuple[int, ...] = ()) -> DecodeLoad:
    """Return the load of at least one sequence, from sums over the contexts. clipped: numbers that the windows add."""
    pages = sequences, context_sum // sequences // MEAN_TOKENS, longest // LONGEST_TOKENS
    return pages + clipped if clipped else pages


def decode_load_of(contexts: Sequence[int], windows: Sequence[int]) -> DecodeLoad:
    """Return the same from the contexts themselves. windows: of the model's decode attention, the narrowest first."""
    if not contexts:
        return ()
    clipped: list[int] = []
    longest = max(contexts)
    if windows and min(contexts) < windows[-1]:
        for window in windows:
            clipped += sum([min(window, context) for context in contexts]), min(longest, window)
    return decode_load(len(contexts), sum(contexts), longest, tuple(clipped))


def decode_arguments(load: DecodeLoad, windows: Sequence[int]) -> dict[int, DecodeArguments]:
    """For each window, and for 0, which is none.

    Decode attention without a window is timed page by page, as kernels read a KV cache: every step whose mean and longest
    context are in the same pages takes the same time, so that it can be remembered. Both count as the middle of the tokens
    of their page (0 to 15 and 0 to 63): a sequence that grows through it is charged neither too much nor too little.
    A window clips each context by itself.
    """
    sequences = load[0]
    total = sequences * (MEAN_TOKENS * load[1] + _MEAN_MIDDLE)
    arguments: dict[int, DecodeArguments] = {0: (sequences, total, LONGEST_TOKENS * load[2] + _LONGEST_MIDDLE)}
    if windows:
        clipped = load[3:]
        for i, window in enumerate(windows):
            sums = (clipped[2 * i], clipped[2 * i + 1]) if clipped else (window * sequences, window)
            arguments[window] = sequences, *sums
    return arguments


def prompt_sums(chunks: Sequence[tuple[int, int]], window: int) -> tuple[int, int, int, int]:
    """(pairs, new tokens, context tokens, longest) of PrefillAttention, each query seeing `window` keys (0: all)."""
    pairs = new = context = longest = 0
    for added, before in chunks:
        new += added
        pairs += causal_pairs(added, before, window)
        context += before if not window or before < window else window
        if added + before > longest:
            longest = added + before
    if window:
        longest = min(longest, window + _QUERY_BLOCK)
    return pairs, new, context, longest


class RankCounts:
    """Counts of one rank's batch. `queries` are the tokens that every decoding sequence adds."""

    __slots__ = ("chunks", "context", "decode_tokens", "decodes", "new", "rows", "sequences", "tokens")

    def __init__(self, chunks: Chunks, decodes: int, queries: int = 1) -> None:
        self.chunks = chunks
        self.decodes = decodes
        self.decode_tokens = decodes * queries
        self.new = self.context = 0
        for new, context in chunks:
            self.new += new
            self.context += context
        self.tokens = self.new + self.decode_tokens
        self.rows = self.decode_tokens + len(chunks)  # every chunk's last token goes through lm_head too, as in vLLM
        self.sequences = decodes + len(chunks)


BATCHES = 8192  # that are remembered, of each kind: what comes back most, and no more than some megabytes
_HALF_SLOWED = 256  # prompt tokens of a step whose kernels are slowed down by half of what those of long prompts are
_PROMPTS = 1024  # batches with prompts, and counts of tokens: where prompts differ they hardly ever come back

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class Memo(dict[_Key, _Value]):
    """Values of a function, so many at most, each worked out once. Thread-safe: what is remembered never differs."""

    def __init__(self, find: Callable[[_Key], _Value], most: int) -> None:
        super().__init__()
        self._find = find
        self._most = most

    def __missing__(self, key: _Key) -> _Value:
        value = self._find(key)
        if len(self) >= self._most:
            self.clear()
        self[key] = value
        return value


def rank_counts(queries: int) -> Memo[tuple[Chunks, int], RankCounts]:
    """Return the counts of batches by their prompt chunks and their number of decoding sequences."""
    return Memo(lambda batch: RankCounts(batch[0], batch[1], queries), _PROMPTS)


class OperationTime(NamedTuple):
    """One line of a step's explanation. Times and amounts are those of one GPU, all calls together."""

    name: str
    calls: int  # times per step, e.g. once a layer
    seconds: float
    flops: float = 0.0
    bytes: float = 0.0  # through GPU memory, or through the link
    ideal_s: float = 0.0  # at the datasheet's rates
    bound: Bound = "launch"


class Stage:
    """Operations on one rank. Thread-safe.

    windows: of decode attention in the whole model, the narrowest first. queries: tokens that every decoding sequence adds.
    prefill_in_place: by how much kernels are slower in long prompts than one by one; decodes in the same step are not.
    """

    def __init__(
        self, ops: Iterable[Op], windows: Sequence[int] = (), queries: int = 1, prefill_in_place: float = 1.0
    ) -> None:
        self.ops = tuple(ops)
        self._windows = windows
        self._queries = queries
        self._slower = prefill_in_place - 1.0
        by_count = [Memo(self._token_kernels(count), _PROMPTS) for count in COUNTS]
        self._tokens_s, self._shared_s, self._new_s, self._expanded_s = by_count[:4]
        self._decode_tokens_s, self._sequences_s, self._rows_s = by_count[4:]
        self._prefills = [(op.calls, op.kernel.seconds, op.window) for op in self.ops if isinstance(op, PrefillOp)]
        decodes = [op for op in self.ops if isinstance(op, DecodeOp)]
        self._before_s = Memo(self._find_before, _PROMPTS)
        self._decodes_before_s = Memo(self._find_decodes_before, BATCHES)
        # Decodes alone, and in a step that has prompt chunks too.
        self._find_decodes = self._decode_kernels([op.calls for op in decodes], decodes)
        self._decodes_s = Memo(self._find_decodes, BATCHES)
        self._mixed_s = Memo(self._decode_kernels([op.calls * op.mixed for op in decodes], decodes), BATCHES)

    def together_s(self, tokens: int, new: int) -> float:
        """Seconds of what all ranks do together, by the tokens of all and those of prompts among them."""
        seconds = self._shared_s[tokens]
        if new and seconds:
            seconds += self._slowed(new) * self._shared_s[new]
        return seconds

    def _slowed(self, new: int) -> float:
        """Return the share that `new` prompt tokens in a step add to the time of their kernels."""
        return self._slower * new / (new + _HALF_SLOWED)

    def rank_s(self, load: RankCounts, decoding: DecodeLoad) -> float:
        """Seconds of what a rank does by itself."""
        if not load.decodes:
            return self._before_s[load]
        return self._before_s[load] + (self._mixed_s if load.new else self._decodes_s)[decoding]

    def decoding_s(self, load: DecodeLoad) -> float:
        """`rank_s` of decoding sequences alone, for somebody who remembers it."""
        return self._decodes_before_s[load[0]] + self._find_decodes(load)

    def _find_before(self, load: RankCounts) -> float:
        """Return the seconds for all tokens and sequences, and for the prompt chunks alone."""
        seconds = self._tokens_s[load.tokens] + (self._rows_s[load.rows] + self._sequences_s[load.sequences])
        if load.new:
            prompts_s = self._new_s[load.new] + self._expanded_s[load.new + load.context]
            for calls, kernel_s, window in self._prefills:
                prompts_s += calls * kernel_s(*prompt_sums(load.chunks, window))
            seconds += prompts_s + self._slowed(load.new) * (prompts_s + self._tokens_s[load.new])
        return seconds

    def _find_decodes_before(self, decodes: int) -> float:
        """`_find_before` of so many decoding sequences alone."""
        return self._find_before(RankCounts((), decodes, self._queries))

    def _decode_kernels(self, calls: Sequence[float], ops: Sequence[DecodeOp]) -> Callable[[DecodeLoad], float]:
        """Seconds of what is done for the decoding sequences alone, with so many calls of each kernel."""
        kernels = [(times, op.kernel.seconds, op.window) for times, op in zip(calls, ops, strict=True)]
        windows, queries, tokens_s = self._windows, self._queries, self._decode_tokens_s

        def seconds(load: DecodeLoad) -> float:
            arguments = decode_arguments(load, windows)
            total = tokens_s[load[0] * queries]
            for times, kernel_s, window in kernels:
                total += times * kernel_s(*arguments[window])
            return total

        return seconds

    def _token_kernels(self, counted: Count) -> Callable[[int], float]:
        """Seconds of the kernels that depend on the same count."""
        kernels = [(op.calls, op.kernel) for op in self.ops if isinstance(op, TokenOp) and op.count == counted]

        def seconds(count: int) -> float:
            total_s = 0.0  # not sum(): from Python 3.12 on it rounds otherwise
            for calls, kernel in kernels if count else ():
                total_s += calls * kernel.seconds(count)
            return total_s

        return seconds

    def explain(
        self, load: RankCounts, decoding: DecodeLoad, group: tuple[int, int], scale: float
    ) -> Iterator[OperationTime]:
        """Yield every operation that takes time; with `scale` 1 the seconds add up to rank_s + together_s.

        group: tokens of all ranks, and those of prompts among them.
        """
        decodes = decode_arguments(decoding, self._windows) if load.decodes else {}
        arguments: tuple[float, ...]
        for op in self.ops:
            slowed = 1.0 + self._slowed(load.new)
            if isinstance(op, TokenOp):
                share = self._slowed(group[1] if op.count == "group" else load.new)
                if op.count == "group":
                    count, new = group
                elif op.count == "expanded":
                    count = new = load.new + load.context if load.new else 0
                else:
                    count = getattr(load, op.count)
                    new = load.new if op.count in ("tokens", "new") else 0
                if not count or not (whole := op.kernel.seconds(count)):
                    continue
                arguments = (count,)
                slowed = 1.0 + share * (op.kernel.seconds(new) / whole if new else 0.0)
            elif isinstance(op, PrefillOp):
                if not load.new:
                    continue
                arguments = prompt_sums(load.chunks, op.window)
            elif decodes:
                arguments, slowed = decodes[op.window], op.mixed if load.new else 1.0
            else:
                continue
            work, calls = op.kernel.work(*arguments), op.calls
            amounts = calls * work.flops, calls * work.bytes, calls * work.ideal_s
            yield OperationTime(op.name, calls, calls * work.seconds * slowed * scale, *amounts, work.bound)


def merged(times: Iterable[OperationTime]) -> list[OperationTime]:
    """Operations of the same name as one line, bound by what bounds the longest of them; longest line first."""
    by_name: dict[str, list[OperationTime]] = {}
    for time in times:
        by_name.setdefault(time.name, []).append(time)
    lines = []
    for name, group in by_name.items():
        columns = zip(*(time[1:-1] for time in group), strict=True)
        calls, seconds, flops, moved, ideal_s = (reduce(add, column) for column in columns)  # not sum(): as above
        longest = max(group, key=lambda time: time.seconds)
        lines.append(OperationTime(name, calls, seconds, flops, moved, ideal_s, longest.bound))
    return sorted(lines, key=lambda line: -line.seconds)


class EngineOverhead:
    """The host's part of an instance whose first stage has these operations.

    max_num_seqs: of a rank, for which CUDA graphs were captured. launch_us: for each kernel.
    """

    def __init__(
        self, engine: Engine, ops: Sequence[Op], parallel: Parallelism, max_num_seqs: int, launch_us: float
    ) -> None:
        self._engine = engine
        self.scaled = engine.decode_scale != 1.0 or engine.prefill_scale != 1.0
        self._sync_s = engine.dp_sync_ms * 1e-3 if parallel.dp > 1 else 0.0
        of_prompts = [op for op in ops if not isinstance(op, DecodeOp) and getattr(op, "count", "") != "decode_tokens"]
        between = [op for op in of_prompts if isinstance(op, PrefillOp) or op.count == "new"]
        self._launch_s = 1e-6 * launch_us * sum([op.calls * op.launches for op in of_prompts])
        self._captured_tokens = engine.captured_tokens(max_num_seqs) * parallel.dp
        # a graph before each attention, one at the end
        self._captured_s = 1e-6 * launch_us * (sum([op.calls * (op.launches + 1) for op in between]) + 1)
        pipelined = replace(engine, async_scheduling=True) if parallel.pp > 1 else engine  # with other steps under way
        self._host_parts_s = Memo(pipelined.host_parts_s, BATCHES)

    def gpu_scale(self, new_tokens: int, decode_tokens: int) -> float:
        if not self.scaled:
            return 1.0
        engine = self._engine
        return (engine.prefill_scale * new_tokens + engine.decode_scale * decode_tokens) / (new_tokens + decode_tokens)

    def with_host(self, gpu_s: float, sequences: int, new_tokens: int, tokens: int) -> float:
        """Return the seconds of a step whose first stage takes `gpu_s`; sequences: on the rank that has most.

        new_tokens: of prompts, which go through layer by layer, without a graph of the whole step. tokens: of all ranks.
        """
        exposed_s, hidden_s = self._host_parts_s[sequences]
        if new_tokens:
            hidden_s = max(hidden_s, self._captured_s if tokens <= self._captured_tokens else self._launch_s)
        return max(gpu_s, hidden_s) + (exposed_s + self._sync_s)

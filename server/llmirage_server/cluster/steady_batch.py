"""A batch of decoding sequences, known by sums: what a step of all of them needs, and who is done after which step.

Steps are numbered. All sequences of the batch gain a token with every step, so that a step costs the same to follow however
many there are. A sequence joins with the tokens that it has, and its own fields stand still until it leaves.

The context of a sequence at a step is the step's number less a number that never changes: its base. So what depends on
contexts is kept by base, and does not move when steps go by.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count
from operator import itemgetter

from llmirage_server.cluster.kv_cache import Sequence

# A sequence in the batch: number of the step that brings its last token; the order in which the instance runs its sequences;
# its base; number of the step that brought its first token here; the sequence. Of two that are done with the same step the
# one that joined first is the smaller. (A plain tuple: it is made once a request.)
Member = tuple[int, int, int, int, Sequence]

_SLACK = 64  # bases that nobody has any more, beside as many as somebody has


class SteadyBatch:
    """step: number of the next step. size, context_sum: of its sequences; a context is all tokens but for the last."""

    def __init__(self, page_size: int) -> None:
        self.step = 0
        self.size = 0
        self.context_sum = 0
        self._page = page_size
        self._members: list[Member] = []  # a heap: who is done first is first
        self._bases: dict[int, int] = {}  # how many sequences have which base
        self._lowest: list[int] = []  # a heap of bases, also of some that nobody has any more
        # Sequences that need a page, by the step's number modulo the page size; written down twice, one behind the other,
        # so that the steps of less than a page are one slice, wherever they begin.
        self._pages = [0] * (2 * page_size)
        self._serial = count()

    @property
    def longest(self) -> int:
        """The longest context of the next step."""
        lowest, bases = self._lowest, self._bases
        while lowest[0] not in bases:
            heappop(lowest)
        return self.step - lowest[0]

    @property
    def next_last(self) -> int:
        """The number of the first step after which someone is done."""
        return self._members[0][0]

    def join(self, sequence: Sequence, first: int) -> None:
        """From the next step on, after all that joined before. first: the step that brought the token it has now."""
        step, tokens, bases, pages, page = self.step, sequence.tokens, self._bases, self._pages, self._page
        context = tokens - 1
        base = step - context
        last = step + sequence.max_tokens - tokens - 1
        heappush(self._members, (last, next(self._serial), base, first, sequence))
        if base in bases:
            bases[base] += 1
        else:
            bases[base] = 1
            heappush(self._lowest, base)
            if len(self._lowest) > 2 * len(bases) + _SLACK:
                self._lowest = list(bases)
                heapify(self._lowest)
        self.size += 1
        self.context_sum += context
        pages[base % page] += 1
        pages[base % page + page] += 1

    def pages(self, steps: int = 1) -> int:
        """New pages that the next so many steps need."""
        page = self._page
        at = self.step % page
        if steps < page:
            return sum(self._pages[at : at + steps])
        return steps // page * self.size + sum(self._pages[at : at + steps % page])

    def steps_within(self, pages: int, steps: int) -> int:
        """How many of the next `steps` steps so many new pages are enough for."""
        if (steps // self._page + 1) * self.size <= pages or self.pages(steps) <= pages:
            return steps
        enough = pages // self.size * self._page
        left = pages - pages // self.size * self.size
        while enough < steps and (needed := self._pages[(self.step + enough) % self._page]) <= left:
            left -= needed
            enough += 1
        return enough

    def advance(self, steps: int = 1) -> None:
        """So many steps are over."""
        self.step += steps
        self.context_sum += steps * self.size

    def take_done(self) -> list[tuple[Sequence, int, int]]:
        """Who is done after the step that is just over, in their order, with the steps that brought first and last token.

        The sequences have all their tokens now.
        """
        done = []
        members, step = self._members, self.step
        while members and members[0][0] < step:
            last, _, base, first, sequence = heappop(members)
            self._leave(base)
            sequence.tokens = sequence.max_tokens
            sequence.computed = sequence.max_tokens - 1
            sequence.request.produced = sequence.max_tokens - sequence.prompt_tokens
            done.append((sequence, first, last))
        return done

    def dissolve(self, in_flight: bool) -> list[tuple[Sequence, int]]:
        """Everybody leaves, with the tokens that the steps have brought; in_flight: one more step computes its part.

        Returns them in their order, each with the step that brought its first token here.
        """
        left = []
        for _, _, base, first, sequence in sorted(self._members, key=itemgetter(1)):
            sequence.computed = self.step - base + in_flight
            sequence.tokens = self.step - base + 1
            sequence.request.produced = sequence.tokens - sequence.prompt_tokens
            self._leave(base)
            left.append((sequence, first))
        self._members.clear()
        return left

    def _leave(self, base: int) -> None:
        """Somebody with this base is not counted any more."""
        bases, pages, page = self._bases, self._pages, self._page
        self.size -= 1
        self.context_sum -= self.step - base
        pages[base % page] -= 1
        pages[base % page + page] -= 1
        if bases[base] > 1:
            bases[base] -= 1
            return
        del bases[base]
        if not bases:
            self._lowest.clear()

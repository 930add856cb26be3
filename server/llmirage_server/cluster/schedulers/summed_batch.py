"""A decode batch kept as sums: the cost of a step of all sequences, and which sequences finish after which step.

Steps are numbered. All sequences gain a token with every step in which the batch decodes, so that following a step costs the
same however many there are, and many steps cost hardly more than one. A sequence joins with the tokens that it has, and its
own fields are stale until it is refreshed or removed.

The context of a sequence at a step is the step's number less a constant: its base. So everything that depends on contexts is
kept by base, and does not change as steps pass.

Single tokens are not reported: the batch records when its steps ended, and a request gets the `spans` of the steps that
brought its tokens when it is removed.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Collection
from heapq import heapify, heappop, heappush
from operator import itemgetter

from llmirage_server.cluster.kv.cache import KVCache
from llmirage_server.cluster.request import Request, Sequence
from llmirage_server.cluster.schedulers.batch import DecodeBatch, Step
from llmirage_server.cluster.snapshots import StepCounts

ENDLESS = sys.maxsize  # steady steps of an empty batch
_MOST_ENDS = 1 << 15  # of steps in one array: those whose requests are forgotten are freed

# A sequence in the batch: number of the step that brings its last token, number of its admission, the sequence.
_Member = tuple[int, int, Sequence]


class SummedBatch(DecodeBatch):
    """Sums over the decoding sequences, without draft tokens, one step at a time.

    step: number of the step in flight, or of the next one.
    decodes, context_sum: of the sequences that are in it; a context is all tokens but for the last.
    under_way: 1 while a step is formed or in flight in which they decode, else 0.
    ends_s: when each step ended in which they decoded, from a step on; earlier ones are in the spans of their requests.
    prompt_ends_s: the same of steps in which they stood still while prompts were computed, as in SGLang.
    """

    def __init__(self, kv: KVCache, *, reserves: bool) -> None:
        """Create an empty batch. reserves: whether `tokens_to_come` will be called."""
        self.last_admission = 0
        self.gained = 0
        self.counts = StepCounts()
        self.step = 0
        self.decodes = 0
        self.context_sum = 0
        self.under_way = 0
        self.ends_s = array("d")
        self.prompt_ends_s = array("d")
        self._first = 0  # number of the first step of `ends_s`
        self._kv = kv
        self._page = page = kv.page_size
        self._members: list[_Member] = []  # a heap by the step of the last token
        self._next_last = sys.maxsize  # the step after which the first of them is done
        self._bases: dict[int, int] = {}  # how many sequences have which base
        self._lowest = sys.maxsize  # base: that of the longest context
        self._pages = [0] * page  # sequences that need a page, by the step's number modulo the page size
        self._reserves = reserves
        self._expected_sum = 0
        self._most_to_come = 0  # of one sequence, ever
        self._aside: list[Sequence] = []  # not in the step that is formed or under way, but from the next one on
        self._received: list[Sequence] = []  # have not decoded here yet

    # --- contexts, for the step model ---

    def longest(self) -> int:
        """Return the longest context; 0 if none decodes."""
        return self.step - self._lowest if self.decodes else 0

    def shortest(self) -> int:
        """Return the shortest context; 0 if none decodes."""
        return self.step - max(self._bases) if self.decodes else 0

    def clipped(self, window: int, ahead: int, steps: int) -> list[int]:
        """Return the sum of all contexts clipped to a window, in each of `steps` steps, the first `ahead` steps later.

        A context shorter than the window grows with every step until it fills it, and counts the same from then on.
        """
        growth = [0] * (steps + 1)  # by how much the sum grows more than in the step before
        first, total = self.step + ahead, window * self.decodes
        for base, sequences in self._bases.items():
            below = window - (first - base)
            if below > 0:
                total -= sequences * below
                growth[0] += sequences
                if below < steps:
                    growth[below] -= sequences
        sums, grows = [], 0
        for change in growth[:steps]:
            sums.append(total)
            grows += change
            total += grows
        return sums

    # --- members ---

    def join(self, sequence: Sequence) -> None:
        self._received.append(sequence)
        self._add(sequence, self.step)

    def remove(self, sequence: Sequence) -> None:
        if sequence in self._received:
            self._received.remove(sequence)
        if sequence in self._aside:
            self._aside.remove(sequence)
        else:
            self._take_out(sequence)

    def clear(self) -> None:
        for _, _, sequence in self._members:
            self.refresh(sequence)
            self._end_span(sequence)
        self.decodes = self.context_sum = self.under_way = self._expected_sum = 0
        self._next_last = self._lowest = sys.maxsize
        self._members, self._aside, self._received = [], [], []
        self._bases, self._pages = {}, [0] * self._page

    def refresh(self, sequence: Sequence) -> None:
        if sequence in self._aside:
            return
        context = self.step - sequence.base
        sequence.computed = context + self.under_way
        sequence.tokens = context + 1
        sequence.request.produced = context + 1 - sequence.prompt_tokens

    def in_order(self) -> list[Sequence]:
        sequences = [sequence for _, _, sequence in sorted(self._members, key=itemgetter(1))]
        for sequence in sequences:
            self.refresh(sequence)
        return sequences

    def contexts(self, step: Step | None) -> list[int]:
        decodes = self.decodes if step is None or step.decodes else 0
        return [self.context_sum // decodes] * decodes if decodes else []

    def ready(self) -> int:
        return self.decodes

    def draft_tokens(self, sequence: Sequence) -> int:
        return 0

    def tokens_to_come(self, most: int) -> int:
        if self._most_to_come <= most:
            return self._expected_sum - self.context_sum - self.decodes
        known = self.step + 1
        return sum([min(sequence.expected - known + sequence.base, most) for _, _, sequence in self._members])

    def promised_tokens(self) -> int:
        page, after = self._page, self.step + self.under_way
        unused = sum([(at - after) % page * sequences for at, sequences in enumerate(self._pages) if sequences])
        return self._expected_sum - (self.context_sum + self.under_way * self.decodes + unused)

    # --- forming a step ---

    def decode_all(self, step: Step, budget: int = sys.maxsize, without: Collection[Sequence] = ()) -> int:
        for sequence in without:
            self._set_aside(sequence)
        decodes, pages = self.decodes, self._pages[self.step % self._page]
        if decodes > budget or (pages and not self._kv.take(pages * self._page)):
            return 0
        if decodes:
            self.under_way = 1
            step.decodes = decodes
        return decodes

    def decode(self, step: Step, sequence: Sequence) -> None:
        step.decodes += 1
        self.under_way = 1

    def withdraw(self, step: Step, sequence: Sequence) -> None:
        step.decodes -= 1

    def begin(self, step: Step) -> None:
        self.under_way = 0
        if step.decodes:
            for sequence in [each for _, _, each in self._members if each.computed < each.tokens]:
                self._set_aside(sequence)
            self.under_way = 1

    def advance(self, step: Step, now: float, emitted: list[Request], hands_over: bool) -> list[Sequence] | None:
        number, ends_s, done = self.step, self.ends_s, None
        gained = 0
        if self.under_way:
            self.under_way = 0
            self.step = number + 1
            gained = self.decodes
            self.context_sum += gained
            if self._next_last == number:
                done = self.take_done()
            if self._received:
                self._note_received()
        elif not step.prompts_done:
            self.gained = 0
            return None
        elif self.decodes:  # they stood still: the ends of such steps are in no row with the others
            ends_s = self.prompt_ends_s
        else:
            self.step = number + 1
        ends_s.append(now)
        place = len(ends_s) - 1
        while self._aside:
            self._add(self._aside.pop(0), self.step)
        for sequence in step.prompts_done:
            if not sequence.admission:
                continue  # cancelled
            request = sequence.request
            sequence.tokens += 1
            request.produced += 1
            gained += 1
            if hands_over or sequence.tokens == sequence.max_tokens:
                request.spans.append((ends_s, place, place))
                if done is None:
                    done = []
                done.append(sequence)
            elif ends_s is self.ends_s:
                self._add(sequence, number)
            else:
                request.spans.append((ends_s, place, place))
                self._add(sequence, self.step)
        self.gained = gained
        if place + 1 >= _MOST_ENDS:
            self._begin_arrays()
        return done

    def _begin_arrays(self) -> None:
        """Record the ends of further steps in new arrays."""
        for _, _, sequence in self._members:
            self._end_span(sequence)
            sequence.first_step = max(sequence.first_step, self.step)
        self.ends_s, self.prompt_ends_s, self._first = array("d"), array("d"), self.step

    # --- many steps at once ---

    def steady_steps(self) -> int:
        decodes = self.decodes
        if not decodes:
            return ENDLESS
        if self._received:
            return 0
        steps = self._next_last - self.step + 1
        kv = self._kv
        room_tokens = kv.capacity_tokens - kv.private_tokens - kv.tree.locked_tokens  # kv.room_tokens
        if (steps + self._page) * decodes > room_tokens:  # than which they never need more
            steps = self._steps_within(room_tokens // self._page, steps)
        return steps

    def pass_steps(self, begun: int, ends_s: list[float]) -> None:
        ended = len(ends_s)
        if pages := self._pages_needed(self.step + self.under_way, begun):
            self._kv.take(pages * self._page)
        if ended and self.decodes:  # else the sequences of the step in flight were cancelled
            self.counts.add_steps(self.decodes, ended)
        self.ends_s.fromlist(ends_s)  # half the time of `extend`
        self.step += ended
        self.context_sum += ended * self.decodes
        if ended != begun:
            self.under_way += begun - ended

    def take_done(self) -> list[Sequence]:
        self.gained = self.decodes
        members, step = self._members, self.step
        done: list[Sequence] = []
        while members and members[0][0] < step:
            last, _, sequence = heappop(members)
            self._subtract(sequence)
            max_tokens, request = sequence.max_tokens, sequence.request
            sequence.tokens, sequence.computed = max_tokens, max_tokens - 1
            request.produced = max_tokens - sequence.prompt_tokens
            request.spans.append((self.ends_s, sequence.first_step - self._first, last - self._first))
            done.append(sequence)
        self._next_last = members[0][0] if members else sys.maxsize
        return done

    # --- sums ---

    def _add(self, sequence: Sequence, first_step: int) -> None:
        """Add a sequence from the next step on, or the one being formed.

        first_step: the step of its first token among `ends_s`.
        """
        step, tokens = self.step, sequence.tokens
        base = step - tokens + 1
        last = step + sequence.max_tokens - tokens - 1
        sequence.base, sequence.first_step = base, first_step
        if last < self._next_last:
            self._next_last = last
        heappush(self._members, (last, sequence.admission, sequence))
        bases = self._bases
        if base in bases:
            bases[base] += 1
        else:
            bases[base] = 1
            if base < self._lowest:
                self._lowest = base
        self.decodes += 1
        self.context_sum += tokens - 1
        self._pages[base % self._page] += 1
        if sequence.admission > self.last_admission:
            self.last_admission = sequence.admission
        if self._reserves:
            self._expected_sum += sequence.expected
            self._most_to_come = max(self._most_to_come, sequence.expected - tokens)

    def _subtract(self, sequence: Sequence) -> None:
        """Undo `_add`, except for the heap."""
        bases, base = self._bases, sequence.base
        self.decodes -= 1
        self.context_sum -= self.step - base
        self._pages[base % self._page] -= 1
        if self._reserves:
            self._expected_sum -= sequence.expected
        if bases[base] > 1:
            bases[base] -= 1
            return
        del bases[base]
        if base == self._lowest:
            self._lowest = min(bases, default=sys.maxsize)

    def _take_out(self, sequence: Sequence) -> None:
        """Remove a sequence from the sums before its end."""
        self._end_span(sequence)
        members = self._members
        members.remove((sequence.base + sequence.max_tokens - 2, sequence.admission, sequence))
        heapify(members)
        self._next_last = members[0][0] if members else sys.maxsize
        self._subtract(sequence)

    def _set_aside(self, sequence: Sequence) -> None:
        self.refresh(sequence)
        self._take_out(sequence)
        self._aside.append(sequence)

    def _end_span(self, sequence: Sequence) -> None:
        if sequence.first_step < self.step:
            first = self._first
            sequence.request.spans.append((self.ends_s, sequence.first_step - first, self.step - 1 - first))

    def _note_received(self) -> None:
        """Show that requests with KV from elsewhere have decoded here, so that their reservations are released."""
        for sequence in self._received:
            if sequence.admission and sequence not in self._aside:
                self.refresh(sequence)
        self._received = [sequence for sequence in self._received if sequence in self._aside]

    def _pages_needed(self, step: int, steps: int) -> int:
        """Return the new pages that `steps` steps need from `step` on."""
        page, pages = self._page, self._pages
        at, needed = step % page, 0
        if steps >= page:
            needed = steps // page * self.decodes
            steps %= page
        beyond = at + steps - page
        if beyond > 0:
            return needed + sum(pages[at:]) + sum(pages[:beyond])
        return needed + sum(pages[at : at + steps])

    def _steps_within(self, pages: int, steps: int) -> int:
        """Return for how many of the next `steps` steps `pages` new pages are enough."""
        if self._pages_needed(self.step, steps) <= pages:
            return steps
        enough, left = pages // self.decodes * self._page, pages % self.decodes
        while enough < steps and (needed := self._pages[(self.step + enough) % self._page]) <= left:
            left -= needed
            enough += 1
        return enough

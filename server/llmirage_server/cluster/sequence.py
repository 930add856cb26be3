"""A request as an instance sees it: its computed tokens and the location of their KV."""

from __future__ import annotations

from llmirage_server.cluster.kv.radix_tree import TreeNode
from llmirage_server.cluster.request import Request


class Sequence:
    """A request on an instance, with KV for `computed` of its `tokens` known tokens (prompt and output so far).

    While a step is in flight, `computed` already counts the tokens of that step. While the sequence decodes in a summed
    batch (schedulers/summed_batch.py), `computed` and `tokens` are stale until the batch refreshes them.
    """

    __slots__ = (
        "admission",
        "base",
        "computed",
        "expected",
        "first_step",
        "in_tree",
        "key",
        "max_tokens",
        "node",
        "prompt_tokens",
        "request",
        "slot",
        "stored",
        "tokens",
    )

    base: int  # these two are a summed batch's own
    first_step: int

    def __init__(self, request: Request) -> None:
        prompt_tokens = request.prompt_tokens
        self.request = request
        self.key = request.key  # of the prompt and the whole output
        self.prompt_tokens = prompt_tokens
        self.max_tokens = prompt_tokens + request.output_tokens  # prompt and output
        self.tokens = prompt_tokens + request.produced
        self.admission = 0  # running sequences are numbered in the order of their admission; 0: it does not run
        self.computed = 0
        self.slot = 0  # its slot in a pipeline whose steps have slots
        self.expected = 0  # tokens that its scheduler counts on at most, for a reservation of memory
        self.node: TreeNode | None = None  # where its part of the radix tree ends, locked
        self.in_tree = 0
        self.stored: list[int] | None = None  # how far each offload tier has it, or will have it

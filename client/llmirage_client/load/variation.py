"""Repeats of a conversation with fresh tokens, as another conversation of its kind would have.

System prompts and tools stay, and so do common beginnings of several conversations of the workload: token ids, the first
paragraphs of their texts, blocks of their traces. Everything else, user messages, tool results and replies that the file
holds, becomes other tokens, as many. Equal texts of one repeat stay equal, so that prompts of a conversation extend each
other as they do in the file.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from llmirage_client.load.options import RunOptions
from llmirage_client.workload.session import Session, SyntheticUser, Turn, Workload

if TYPE_CHECKING:
    from llmirage_shared.synthetic_text import SyntheticText


_KEPT_ROLES = ("system", "developer")
_TEXTS_OF_MESSAGES = ("content", "text", "output")
_TEXTS_OF_BODIES = ("messages", "input", "prompt")
_FEW_WORDS = 8  # of fewer there are too few orders: such texts are written anew
_PARAGRAPH = "\n\n"

Message = Mapping[str, Any]


class Variation:
    """The repeats of one workload. Common beginnings are searched for at the first repeat."""

    def __init__(self, workload: Workload, options: RunOptions) -> None:
        self._workload = workload
        self._tokenizer_name = options.tokenizer
        self._seed = options.seed or 0

    def turn(self, session: Session, index: int) -> Turn:
        turn, repeat = session.turns[index], session.repeat
        if not repeat:
            return turn
        spec = turn.tokens
        changes: dict[str, Any] = {}
        if spec is not None:
            if spec.input_ids is None:
                return turn  # the writer of the tokens knows the repeat
            return replace(turn, tokens=replace(spec, input_ids=self.prompt_ids(session, spec.input_ids)))
        if turn.messages:
            changes["messages"] = tuple([self._message(message, repeat) for message in turn.messages])
        if turn.payload is not None:
            changes["payload"] = self._payload(turn.payload, repeat)
        if turn.synthetic is not None:
            changes["synthetic"] = self._synthetic(turn.synthetic, repeat)
        return replace(turn, **changes)

    # --- token ids -------------------------------------------------------------------------------------------------------

    def prompt_ids(self, session: Session, ids: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Return a prompt with other ids of the file after the common beginning, each by its place and its old value."""
        if not session.repeat:
            return ids
        kept = self._common_tokens.get(session.id, 0)
        used, rank = self._used_ids
        count = len(used)
        if count < 2:
            return ids
        turns, shift = divmod(session.repeat - 1 + self._seed % (count - 1), count - 1)
        places = np.arange(kept, len(ids), dtype=np.int64)
        others = (rank[ids[kept:]] + 1 + shift + turns * places) % count
        return np.concatenate([ids[:kept], used[others]])

    @cached_property
    def _used_ids(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """The ids in prompts of the file, which any vocabulary of it has too, and the rank of each id among them."""
        prompts = [
            turn.tokens.input_ids
            for session in self._workload.sessions.values()
            for turn in session.turns
            if turn.tokens is not None and turn.tokens.input_ids is not None
        ]
        seen = np.zeros(1 + max(int(prompt.max(initial=0)) for prompt in prompts), dtype=np.bool_)
        for prompt in prompts:
            seen[prompt] = True
        return np.flatnonzero(seen).astype(np.int32), np.cumsum(seen, dtype=np.int64) - 1

    @cached_property
    def _common_tokens(self) -> Mapping[str, int]:
        return common_tokens(self._workload)

    # --- messages given by length or blocks ------------------------------------------------------------------------------

    def _synthetic(self, message: SyntheticUser, repeat: int) -> SyntheticUser:
        own, blocks = self._number("key", repeat), message.block_ids
        if blocks is not None:
            blocks = np.where(np.isin(blocks, self._common_blocks), blocks, blocks ^ (own >> 1))
        return replace(message, key=message.key ^ own, block_ids=blocks)

    @cached_property
    def _common_blocks(self) -> npt.NDArray[np.int64]:
        by_root: dict[str, list[npt.NDArray[np.int64]]] = {}
        for root, turn in self._turns():
            if turn.synthetic is not None and turn.synthetic.block_ids is not None:
                by_root.setdefault(root, []).append(turn.synthetic.block_ids)
        if not by_root:
            return np.empty(0, dtype=np.int64)
        own = [np.unique(np.concatenate(blocks)) for blocks in by_root.values()]
        found, counts = np.unique(np.concatenate(own), return_counts=True)
        return found[counts > 1]

    # --- texts -----------------------------------------------------------------------------------------------------------

    def _payload(self, payload: Message, repeat: int) -> dict[str, Any]:
        return {key: self._part(value, repeat) if key in _TEXTS_OF_BODIES else value for key, value in payload.items()}

    def _part(self, part: Any, repeat: int) -> Any:
        """Return a text, a list of messages, or of parts of one, varied."""
        if isinstance(part, str):
            return self._text(part, repeat)
        if not isinstance(part, list):
            return part
        return [self._message(each, repeat) if isinstance(each, Mapping) else each for each in part]

    def _message(self, message: Message, repeat: int) -> Message:
        """Return a message or a part of its content, varied."""
        if message.get("role") in _KEPT_ROLES:
            return message
        changed = {key: self._part(message[key], repeat) for key in _TEXTS_OF_MESSAGES if key in message}
        return {**message, **changed}

    def _text(self, text: str, repeat: int) -> str:
        """Return the text with the words between spaces in another order; word-based tokenizers count them the same.

        A text of few such words is written anew, in the tokenizer of the run.
        """
        paragraphs = [paragraph.split(" ") for paragraph in text.split(_PARAGRAPH)]
        common = sum(1 for beginning in _beginnings(text) if beginning in self._common_beginnings)
        own = paragraphs[common:]
        places = [(words, i) for words in own for i in range(1, len(words) - 1) if words[i].isprintable() and words[i]]
        key = self._number(text, repeat)
        if len(places) < _FEW_WORDS:
            for words in own:
                words[:] = [self._written(" ".join(words), key)]
        else:
            order = np.random.default_rng(key).permutation(len(places)).tolist()
            moved = [places[i][0][places[i][1]] for i in order]
            for (words, i), word in zip(places, moved, strict=True):
                words[i] = word
        return _PARAGRAPH.join(map(" ".join, paragraphs))

    def _written(self, text: str, key: int) -> str:
        from llmirage_shared.tokens import TokenizerError

        try:
            return self._writer.text(key, len(self._writer.tokenizer.encode(text)))
        except TokenizerError:  # a vocabulary that one cannot write in
            return text

    @cached_property
    def _writer(self) -> SyntheticText:
        from llmirage_shared.synthetic_text import SyntheticText
        from llmirage_shared.tokenizer_loader import load

        return SyntheticText(load(self._tokenizer_name)[0], self._seed)

    @cached_property
    def _common_beginnings(self) -> frozenset[int]:
        """Hashes of the common beginnings of texts of several trees, in whole paragraphs."""
        by_root: dict[str, set[int]] = {}
        for root, turn in self._turns():
            texts = [text for message in (*turn.messages, turn.payload or {}) for text in _texts(message)]
            by_root.setdefault(root, set()).update(each for text in texts for each in _beginnings(text))
        counts = Counter(each for own in by_root.values() for each in own)
        return frozenset(each for each, count in counts.items() if count > 1)

    def _turns(self) -> Iterator[tuple[str, Turn]]:
        """Yield every turn with the root of its tree."""
        for name, root in roots_of(self._workload).items():
            for turn in self._workload.sessions[name].turns:
                yield root, turn

    def _number(self, *place: object) -> int:
        """Return 63 bits that depend on the seed and the place."""
        return int.from_bytes(hashlib.blake2b(repr((self._seed, *place)).encode(), digest_size=8).digest()) >> 1


def _beginnings(text: str) -> Iterator[int]:
    """Yield a hash of the first paragraph, of the first two, and so on."""
    seen = 0
    for paragraph in text.split(_PARAGRAPH):
        seen = hash((seen, paragraph))
        yield seen


def _texts(message: Message) -> Iterator[str]:
    if message.get("role") in _KEPT_ROLES:
        return
    for key in (*_TEXTS_OF_MESSAGES, *_TEXTS_OF_BODIES):
        part = message.get(key)
        if isinstance(part, str):
            yield part
        elif isinstance(part, list):
            for each in part:
                if isinstance(each, Mapping):
                    yield from _texts(each)


def variation_of(workload: Workload, options: RunOptions) -> Variation | None:
    """Return the variation of a run; None if repeats are as in the file."""
    return Variation(workload, options) if options.vary else None


def roots_of(workload: Workload) -> Mapping[str, str]:
    """Return the root of each session's tree; of several the first."""
    found: dict[str, str] = {}
    for root in workload.roots:
        left = [root]
        while left:
            name = left.pop()
            if name in found:
                continue
            found[name] = root
            session = workload.sessions[name]
            left += session.pre_session_spawns
            left += [child for one in session.rounds for child in one.children]
            left += [child for turn in session.turns for branch in turn.branches for child in branch.children]
    return found


def common_tokens(workload: Workload) -> Mapping[str, int]:
    """Return by session with token ids the tokens of its first prompt that begin a prompt of another tree too."""
    of_root = roots_of(workload)
    named = [
        (session.turns[0].tokens.input_ids.tobytes(), of_root[name], name)
        for name, session in workload.sessions.items()
        if session.turns and session.turns[0].tokens is not None and session.turns[0].tokens.input_ids is not None
        if name in of_root
    ]
    named.sort()
    common = _common_bytes([prompt for prompt, _, _ in named], [root for _, root, _ in named])
    return {name: size // 4 for (_, _, name), size in zip(named, common, strict=True)}


def common_shares(workload: Workload) -> Mapping[str, float]:
    """Return by session with a context of its own the share of its first prompt with which others begin too.

    Counts of tokens have nothing in common.
    """
    forked = {child for one in workload.sessions.values() for turn in one.turns for branch in turn.branches
              if branch.kind == "fork" for child in branch.children}  # fmt: skip
    named = sorted((_written(session), name) for name, session in workload.sessions.items() if name not in forked)
    common = _common_bytes([prompt for prompt, _ in named], [name for _, name in named])
    return {name: size / max(len(prompt), 1) for (prompt, name), size in zip(named, common, strict=True)}


def _written(session: Session) -> bytes:
    """Return the first prompt as bytes that begin alike where prompts do; of a count of tokens its name."""
    turn = session.turns[0] if session.turns else None
    if turn is None or (turn.tokens is not None and turn.tokens.input_ids is None):
        return session.id.encode()
    if turn.tokens is not None and turn.tokens.input_ids is not None:
        return turn.tokens.input_ids.tobytes()
    blocks = [] if turn.synthetic is None or turn.synthetic.block_ids is None else turn.synthetic.block_ids.tolist()
    own = None if turn.synthetic is None else turn.synthetic.key
    return json.dumps([turn.tools, turn.payload, turn.messages, blocks, own], default=str).encode()


def _common_bytes(prompts: Sequence[bytes], owners: Sequence[str]) -> list[int]:
    """Return for sorted prompts the longest prefix, in bytes, that each shares with one of another owner."""
    beside = [0, *(_alike(one, other) for one, other in pairwise(prompts)), 0]
    ahead, behind = [0] * len(prompts), [0] * len(prompts)
    for i in range(1, len(prompts)):
        ahead[i] = min(ahead[i - 1], beside[i]) if owners[i] == owners[i - 1] else beside[i]
    for i in range(len(prompts) - 2, -1, -1):
        behind[i] = min(behind[i + 1], beside[i + 1]) if owners[i] == owners[i + 1] else beside[i + 1]
    return [max(pair) for pair in zip(ahead, behind, strict=True)]


def _alike(one: bytes, other: bytes) -> int:
    size = min(len(one), len(other))
    differ = np.frombuffer(one[:size], dtype=np.uint8) != np.frombuffer(other[:size], dtype=np.uint8)
    return int(differ.argmax()) if differ.any() else size

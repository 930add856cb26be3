"""Common prefixes of a workload's conversations: of every first prompt, the part that another conversation has too."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from llmirage_client.workload.session import Session, Workload


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

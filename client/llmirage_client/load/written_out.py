"""Workloads whose texts are given by their length, with these texts written out as a run would write them."""

from __future__ import annotations

from dataclasses import replace

from llmirage_client.load.options import RunOptions
from llmirage_client.load.synthetic_turns import SyntheticTurns
from llmirage_client.workload.session import Turn, Workload


def written_out(workload: Workload, tokenizer: str | None, seed: int) -> Workload:
    """tokenizer: folder or hub name, None for the one in the package. Raises TokenizerError when it cannot be used."""
    texts = SyntheticTurns(RunOptions(tokenizer=tokenizer, seed=seed))

    def with_text(turn: Turn) -> Turn:
        return turn if turn.synthetic is None else replace(texts.written(turn, turn.synthetic), synthetic=None)

    sessions = {
        name: replace(session, turns=tuple(map(with_text, session.turns))) for name, session in workload.sessions.items()
    }
    return replace(workload, sessions=sessions)

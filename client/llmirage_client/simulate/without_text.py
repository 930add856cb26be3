"""Which workloads the engine alone can be asked: those whose prompts are known as token ids without writing their text."""

from __future__ import annotations

from collections.abc import Sequence

from llmirage_client.load.options import RunOptions
from llmirage_client.simulate.engine_run import EngineRun
from llmirage_client.simulator.engine import ClusterConfig, ServedPool
from llmirage_client.workload.session import Workload


def engine_run(
    config: ClusterConfig, workload: Workload, options: RunOptions, pools: Sequence[ServedPool]
) -> EngineRun | None:
    """For requests in token counts, in token ids, or in hash blocks; None: only the server's endpoints can read them.

    Ids and blocks have to reach the cluster with nothing added, and any instance may serve them. Raises ConfigError, and
    TokenizerError where blocks cannot be written in the vocabulary.
    """
    as_they_are = options.streaming and not options.extra_inputs and len({pool.model for pool in pools}) == 1
    kind = _kind(workload)
    if kind == "counts":
        return EngineRun(config, workload, options)
    if kind == "ids" and as_they_are and options.endpoint_type in (None, "completions"):
        return EngineRun(config, workload, options, by_endpoint=True)
    plain = config.replies == "prose" and config.tokenizer == options.tokenizer
    if kind == "messages" and as_they_are and plain and options.endpoint_type in (None, "chat"):
        from llmirage_client.simulate.block_prompts import block_prompts

        prompts = block_prompts(workload, options)
        return None if prompts is None else EngineRun(config, workload, options, prompts, by_endpoint=True)
    return None


def _kind(workload: Workload) -> str:
    """counts: of tokens alone; ids: also token ids; messages: none of either; mixed: what only the endpoints can read."""
    kind = "counts"
    for session in workload.sessions.values():
        if session.mode != "tokens":
            return "mixed" if any(turn.tokens for turn in session.turns) else "messages"
        for turn in session.turns:
            if turn.tokens is None or (turn.tokens.input_ids is not None and (turn.extra or turn.model)):
                return "mixed"
            if turn.tokens.input_ids is not None:
                kind = "ids"
    return kind

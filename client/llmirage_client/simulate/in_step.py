"""Users who are all alike: whoever has waited together once sends the next turns together, too."""

from __future__ import annotations

from llmirage_client.workload.session import Workload


def in_step(workload: Workload, users: int | None) -> str | None:
    """What to know of users at once whose think times and replies are all the same; None for others."""
    if not users or users < 2:
        return None
    waits = {turn.delay_s for session in workload.sessions.values() for turn in session.turns[1:]}
    replies = {turn.tokens and turn.tokens.output_tokens for session in workload.sessions.values() for turn in session.turns}
    if len(waits) != 1 or len(replies) != 1 or None in replies or not (wait_s := waits.pop()):
        return None
    return (
        f"All think times are {wait_s:g} s and all replies {replies.pop():,} tokens long: users who once waited for each "
        "other stay in step and come as bursts; TTFT and TPOT may be several times those of users who differ (such as "
        f'--think-time "{wait_s / 2:g}:{wait_s * 1.5:g}").'
    )

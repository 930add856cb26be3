"""Long prompts: written in threads, before they are due, and equal to those of the planner alone."""

import asyncio
import threading
from typing import Any

import pytest

from llmirage_client.load.calls import PromptTooShortError
from llmirage_client.load.conversation import Conversation
from llmirage_client.load.options import RunOptions, Share
from llmirage_client.load.plan import Sampler
from llmirage_client.load.runner import Runner
from llmirage_client.load.turn_calls import CallPlanner
from llmirage_client.workload.session import Branch, Session, SyntheticUser, TokenSpec, Turn

LONG = 3000


def counted(name: str, *tokens: int, **fields: Any) -> Session:
    return Session(name, tuple(Turn(tokens=TokenSpec(each, 5)) for each in tokens), mode="tokens", **fields)


def synthetic(name: str, *tokens: int, mode: Any = "accumulate") -> Session:
    turns = (Turn(synthetic=SyntheticUser(each, key)) for key, each in enumerate(tokens))
    return Session(name, tuple(turns), mode=mode)


SESSIONS = (
    counted("short", 50, 90),
    counted("long", LONG, LONG + 500, 700),
    synthetic("kept", LONG, 40, LONG),
    synthetic("alone", LONG, mode="isolated"),
    Session("forks", (Turn(synthetic=SyntheticUser(LONG, 9), branches=(Branch("f", "fork", ("child",)),)),
                      Turn(synthetic=SyntheticUser(LONG, 10)))),
    synthetic("child", LONG),
)  # fmt: skip


def in_real_time(bench: Any, workload: Any, **options: Any) -> Any:
    target = bench.FakeTarget(reply_s=0.001)
    asyncio.run(Runner(workload, RunOptions(model="m", seed=1, **options), target).run())
    return target


@pytest.mark.parametrize(
    "options", [{}, {"session_prefix": "none"}, {"concurrency": 4, "num_conversations": 9, "vary": True}]
)
def test_threads_write_the_same_prompts(bench: Any, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    workload = bench.workload(*SESSIONS)
    plain = bench.run(workload, **options)[1]
    written_by: dict[int, set[bool]] = {}
    plan = CallPlanner.plan

    def noted(planner: CallPlanner, conversation: Conversation, turn_index: int) -> Any:
        turn = conversation.session.turns[turn_index]
        tokens = turn.tokens.input_tokens if turn.tokens else turn.synthetic.tokens if turn.synthetic else 0
        written_by.setdefault(tokens, set()).add(threading.current_thread() is threading.main_thread())
        return plan(planner, conversation, turn_index)

    monkeypatch.setattr(CallPlanner, "plan", noted)
    target = in_real_time(bench, workload, **options)
    bodies, plain_bodies = (sorted(repr(sent.call.body) for sent in each.sent) for each in (target, plain))
    assert bodies == plain_bodies
    assert written_by == {t: {t < 512} for t in written_by}


def test_prompts_of_a_schedule_are_there_before_its_first_request(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    plan = CallPlanner.plan

    def noted(planner: CallPlanner, conversation: Conversation, turn_index: int) -> Any:
        planned = plan(planner, conversation, turn_index)
        events.append("written")
        return planned

    monkeypatch.setattr(CallPlanner, "plan", noted)
    send = bench.FakeTarget.send

    async def noting(target: Any, call: Any) -> Any:
        events.append("sent")
        return await send(target, call)

    monkeypatch.setattr(bench.FakeTarget, "send", noting)
    sessions = (counted(f"s{i}", LONG, arrival_s=i / 1000) for i in range(5))
    in_real_time(bench, bench.workload(*sessions), fixed_schedule=True)
    assert events == ["written"] * 5 + ["sent"] * 5


def test_a_prompt_that_cannot_be_written_ends_the_run(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise PromptTooShortError("no room")

    monkeypatch.setattr(CallPlanner, "plan", fails)
    with pytest.raises(PromptTooShortError, match="no room"):
        in_real_time(bench, bench.workload(counted("a", LONG)))


@pytest.mark.parametrize("strategy", ["sequential", "shuffle", "random"])
@pytest.mark.parametrize("share", [Share(), Share(1, 3)])
def test_upcoming_roots_are_the_next_ones(bench: Any, strategy: Any, share: Share) -> None:
    workload = bench.workload(*(Session(name, (bench.turn(name),)) for name in "abcde"))
    sampler = Sampler(workload, strategy, 3, skip=2, share=share, vary=True)
    for _ in range(4):
        taken = sampler.taken
        upcoming = sampler.upcoming(3)
        assert sampler.taken == taken
        assert [next(sampler) for _ in range(2)] == upcoming[:2]

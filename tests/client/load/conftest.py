"""A target without a network: replies come from a function, at exact virtual times."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from chat_messages import user

from llmirage_client.load.options import RunOptions
from llmirage_client.load.runner import Runner
from llmirage_client.measure.record import Exchange, RequestError, RunResult
from llmirage_client.targets.target import Call
from llmirage_client.workload.session import Branch, Session, Turn, Workload
from llmirage_shared import virtual_time

FORCED = RequestError(500, "http_error", "forced")


@dataclass
class Sent:
    """One call as the target saw it. label: text of its last message."""

    call: Call
    label: str
    start_s: float
    end_s: float | None = None


@dataclass
class FakeTarget:
    """Answers each call after `reply_s` seconds, or as long as the label says after "@".

    answer: makes the message. fails: says whether a request fails, by its number from 1 and its label; error: how.
    """

    reply_s: float = 1.0
    answer: Callable[[Call], dict[str, Any] | None] | None = None
    fails: Callable[[int, str], bool] = lambda _, label: "FAIL" in label
    error: RequestError = FORCED
    sent: list[Sent] = field(default_factory=list)

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def send(self, call: Call) -> Exchange:
        messages = call.body.get("messages") or [{"content": str(call.body.get("prompt"))}]
        label = str(messages[-1]["content"])
        sent = Sent(call, label, self.now())
        self.sent.append(sent)
        fails = self.fails(len(self.sent), label)
        exchange = Exchange(start_s=self.now(), streamed=call.stream)
        if call.on_sent is not None:
            call.on_sent()
        await asyncio.sleep(float(label.partition("@")[2] or self.reply_s))
        exchange.end_s = sent.end_s = self.now()
        if fails:
            exchange.error = self.error
        else:
            exchange.status = 200
            exchange.token_s = [exchange.end_s]
            exchange.message = self.answer(call) if self.answer else {"role": "assistant", "content": f"re {label}"}
        return exchange

    async def close(self) -> None: ...

    def times(self) -> list[tuple[str, float]]:
        """What went out when, in order."""
        return [(sent.label.partition("@")[0], sent.start_s) for sent in self.sent]

    def histories(self) -> dict[str, list[str]]:
        """The contents of the messages of each call, by the label of its last."""
        return {s.label.partition("@")[0]: [str(m["content"]) for m in s.call.body["messages"]] for s in self.sent}


def run(
    workload: Workload, target: FakeTarget | None = None, during: Callable[[Runner], Any] | None = None, **options: Any
) -> tuple[RunResult, FakeTarget]:
    """Runs the workload in virtual time. during: a coroutine function that goes on beside the run."""
    target = target or FakeTarget()
    options.setdefault("model", "m")
    options.setdefault("seed", 1)

    async def main() -> RunResult:
        runner = Runner(workload, RunOptions(**options), target)
        beside = asyncio.ensure_future(during(runner)) if during else None
        result = await runner.run()
        if beside:
            await beside
        return result

    return virtual_time.run(main()), target


def turn(text: str, **fields: Any) -> Turn:
    return Turn(messages=(user(text),), **fields)


def talk(name: str, *replies_s: float, arrival_s: float | None = None, **of_turns: Any) -> Session:
    """A conversation with a turn for each reply; they take these times."""
    turns = [turn(f"{name}{i}@{reply_s}", **of_turns) for i, reply_s in enumerate(replies_s)]
    return Session(name, tuple(turns), arrival_s=arrival_s)


def fork(*children: str, background: bool = False) -> Branch:
    return Branch("fork " + ",".join(children), "fork", children, background=background)


def spawn(*children: str, join_at: int | None = None) -> Branch:
    return Branch("spawn " + ",".join(children), "spawn", children, join_at)


def workload(*sessions: Session, roots: Sequence[str] | None = None) -> Workload:
    named = {child for s in sessions for t in s.turns for b in t.branches for child in b.children}
    named |= {child for s in sessions for child in s.pre_session_spawns}
    named |= {child for s in sessions for round_ in s.rounds for child in round_.children}
    own_roots = tuple(s.id for s in sessions if s.id not in named) if roots is None else tuple(roots)
    return Workload("dag_jsonl", "test.jsonl", {s.id: s for s in sessions}, own_roots)


class Bench:
    """Everything above as one fixture, since test modules cannot import each other."""

    FakeTarget = FakeTarget
    run = staticmethod(run)
    user = staticmethod(user)
    turn = staticmethod(turn)
    talk = staticmethod(talk)
    fork = staticmethod(fork)
    spawn = staticmethod(spawn)
    workload = staticmethod(workload)


@pytest.fixture(scope="session")
def bench() -> type[Bench]:
    return Bench

"""A converted workload sends what the original sends, at the same times; what cannot be converted is refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmirage_client.workload.convert import ConversionError, convert
from llmirage_client.workload.registry import load
from llmirage_client.workload.session import Branch, ContextMode, Session, SyntheticUser, TokenSpec, Turn, Workload
from llmirage_client.workload.writers import WRITERS

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="@"), min_size=1, max_size=12)
TIMES_S = st.integers(0, 50_000).map(lambda ms: ms / 1000)
LENGTHS = st.integers(1, 300)
EXTRA: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({}), st.fixed_dictionaries({"temperature": st.sampled_from([0, 0.5]), "user": TEXTS})
)
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
NAMES = ("a", "b", "c")


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), values)


@st.composite
def talks(draw: st.DrawFn) -> Workload:
    """Conversations of messages, plain or with everything a turn may have, with or without times and a child."""
    mode: ContextMode = draw(st.sampled_from(["accumulate", "accumulate", "isolated", "accumulate_authored"]))
    plain = draw(st.booleans())
    timed = draw(st.booleans())
    sessions = {}
    for name in NAMES[: draw(st.integers(1, 3))]:
        turns = [draw(_turn(plain, first=i == 0)) for i in range(draw(st.integers(1, 3)))]
        arrival_s = draw(TIMES_S) if timed else None
        sessions[name] = Session(name, tuple(turns), mode=mode, arrival_s=arrival_s)
    roots = list(sessions)
    if mode == "accumulate" and draw(st.booleans()):
        parent = sessions["a"]
        kind = draw(st.sampled_from(["fork", "spawn"]))
        last = len(parent.turns) - 1
        at = last if kind == "fork" else draw(st.integers(0, last))
        join_at = draw(st.integers(at + 1, last)) if kind == "spawn" and at < last else None
        branch = Branch("a:x", "fork" if kind == "fork" else "spawn", ("child",), join_at)
        turns = list(parent.turns)
        turns[at] = replace(turns[at], branches=(branch,))
        sessions["a"] = replace(parent, turns=tuple(turns))
        sessions["child"] = Session("child", (draw(_turn(plain, first=False)),))
    if timed:
        roots.sort(key=lambda name: sessions[name].arrival_s or 0.0)
        first = sessions[roots[0]].arrival_s or 0.0
        sessions |= {n: replace(sessions[n], arrival_s=(sessions[n].arrival_s or 0.0) - first) for n in roots}
    return Workload("talks", "talks", sessions, tuple(roots))


@st.composite
def _turn(draw: st.DrawFn, plain: bool, first: bool) -> Turn:
    user = {"role": "user", "content": draw(TEXTS)}
    if plain:
        return Turn(messages=(user,), delay_s=0.0 if first else draw(TIMES_S))
    system = [{"role": "system", "content": draw(TEXTS)}] if first and draw(st.booleans()) else []
    more = [{"role": "user", "content": [{"type": "text", "text": draw(TEXTS)}]}] if draw(st.booleans()) else []
    tokens = draw(maybe(LENGTHS))
    return Turn(
        messages=(*system, *more, user),
        model=draw(maybe(st.just("other"))),
        max_tokens=tokens,
        min_tokens=tokens if draw(st.booleans()) else None,
        tools=draw(maybe(st.sampled_from([(TOOL,), ()]))),
        extra=draw(EXTRA),
        delay_s=0.0 if first else draw(TIMES_S),
    )


@st.composite
def bodies(draw: st.DrawFn) -> Workload:
    """Whole request bodies."""
    sessions = {}
    for name in NAMES[: draw(st.integers(1, 3))]:
        messages = st.lists(st.just({"role": "user", "content": "x"}), min_size=1, max_size=2)
        body = st.fixed_dictionaries({"messages": messages, "model": TEXTS})
        payloads = draw(st.lists(body, min_size=1, max_size=3))
        sessions[name] = Session(name, tuple(Turn(payload=payload) for payload in payloads), mode="verbatim")
    return Workload("bodies", "bodies", sessions, tuple(sessions))


@st.composite
def token_calls(draw: st.DrawFn) -> Workload:
    """Calls in tokens, with ids or without."""
    sessions = {}
    with_ids = draw(st.booleans())
    for index, name in enumerate(NAMES[: draw(st.integers(1, 3))]):
        turns = []
        for i in range(draw(st.integers(1, 3))):
            size = draw(st.integers(20, 60)) + 80 * i
            ids = np.arange(size, dtype=np.int32) if with_ids else None
            turns.append(Turn(tokens=TokenSpec(size, draw(LENGTHS), ids), delay_s=draw(TIMES_S) if i else 0.0))
        sessions[name] = Session(name, tuple(turns), mode="tokens", arrival_s=index * draw(TIMES_S) if index else 0.0)
    ordered = sorted(sessions, key=lambda name: sessions[name].arrival_s or 0.0)
    return Workload("calls", "calls", {name: sessions[name] for name in ordered}, tuple(ordered))


@st.composite
def traces(draw: st.DrawFn) -> Workload:
    """Prompts given by length, some with block hashes."""
    sessions = {}
    block = draw(st.sampled_from([16, 512]))
    for key, name in enumerate(NAMES):
        tokens = draw(st.integers(1, 600))
        hashes = draw(st.lists(st.integers(0, 9), max_size=-(-tokens // block))) if draw(st.booleans()) else []
        message = SyntheticUser(tokens, key + 1, block_ids=np.array(hashes, dtype=np.int64), block_tokens=block)
        reply = draw(LENGTHS)
        sessions[name] = Session(name, (Turn(synthetic=message, max_tokens=reply, min_tokens=reply),))
    return Workload("trace", "trace", sessions, tuple(sessions))


def sent(bench: Any, workload: Workload) -> list[tuple[float, str]]:
    """What goes out when, by time and then body. Texts that are like no other have no meaning but their length."""
    _, target = bench.run(workload, bench.FakeTarget(reply_s=0.25), concurrency=None if workload.timed else 1,
                          fixed_schedule=workload.timed, endpoint_kind="llmirage")  # fmt: skip
    out = [(round(s.start_s, 5), json.dumps(s.call.body, sort_keys=True, default=list)) for s in target.sent]
    return sorted(out)


def check(bench: Any, folder: Path, workload: Workload, may_refuse: Callable[[str], bool]) -> None:
    before = sent(bench, workload)
    for name in WRITERS:
        try:
            converted = convert(workload, name)
        except ConversionError as refused:
            if not may_refuse(name):
                raise
            lost = refused.lost
        else:
            lost = ()
        if lost:
            continue
        path = folder / "converted"
        path.write_bytes(converted.data)
        assert sent(bench, load(str(path), name, converted.options)) == before, name


RELAXED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@RELAXED
@given(talks())
def test_conversations_go_out_as_before(bench: Any, tmp_path: Path, workload: Workload) -> None:
    check(bench, tmp_path, workload, lambda name: name != "dag_jsonl")


@RELAXED
@given(bodies())
def test_bodies_go_out_as_before(bench: Any, tmp_path: Path, workload: Workload) -> None:
    check(bench, tmp_path, workload, lambda name: name not in ("inputs_json", "mooncake_trace"))


@RELAXED
@given(token_calls())
def test_calls_in_tokens_go_out_as_before(bench: Any, tmp_path: Path, workload: Workload) -> None:
    lengths_only = all(t.tokens is None or t.tokens.input_ids is None for s in workload.sessions.values() for t in s.turns)
    if lengths_only:  # texts of such calls depend on the names of their sessions
        assert load_again(tmp_path, workload) == [
            (s.arrival_s, t.delay_s, t.tokens) for s in workload.sessions.values() for t in s.turns
        ]
    else:
        check(bench, tmp_path, workload, lambda name: name != "agentic_jsonl")


def load_again(folder: Path, workload: Workload) -> list[Any]:
    path = folder / "converted"
    path.write_bytes(convert(workload, "agentic_jsonl").data)
    after = load(str(path))
    return [(after.sessions[r].arrival_s, t.delay_s, t.tokens) for r in after.roots for t in after.sessions[r].turns]


@RELAXED
@given(traces())
def test_traces_go_out_as_before(bench: Any, tmp_path: Path, workload: Workload) -> None:
    check(bench, tmp_path, workload, lambda name: name != "mooncake_trace")

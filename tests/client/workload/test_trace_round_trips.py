"""Traces that a server has written are read back: the same requests, tokens, order, parents and shared prefixes."""

import asyncio
import json
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from traced import traced

import llmirage
from llmirage_client.workload.registry import load
from llmirage_client.workload.session import NOBODY, Tenant, Workload
from llmirage_server.app import create_app
from llmirage_server.config import ClusterConfig
from llmirage_server.telemetry.traces.block_traces import DynamoWriter, MooncakeWriter, WekaWriter
from llmirage_server.telemetry.traces.served import TracedRequest
from llmirage_server.telemetry.traces.workload import WorkloadWriter, recorded_call
from llmirage_shared import virtual_time

SYSTEM = {"role": "system", "content": "You are a careful agent. " * 30}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}
ENGINE: dict[str, Any] = {"engine": "vllm", "model": "Qwen/Qwen3-8B", "gpu": "h100_sxm", "instances": 1}
_TEMPLATE = 3  # tokens of the chat template around a prompt known by its length
OUTS = {
    "dynamo_request_trace": "out.jsonl",
    "agentic_mooncake": "out.mooncake.jsonl",
    "weka_trace": "out/",
    "otel_spans": "out.otlp.jsonl",
    "mooncake_trace": "work.jsonl",
}


async def traffic(**settings: Any) -> list[tuple[int, int, int]]:
    """Four sessions, two of them named, a child and a tool call: prompt, cached and reply tokens of each request."""
    app = create_app(ClusterConfig(**ENGINE, **settings))
    found: list[tuple[int, int, int]] = []

    async def chat(messages: Sequence[dict[str, Any]], headers: dict[str, str], **more: Any) -> str:
        body = {"model": "m", "messages": list(messages), "max_tokens": 20} | more
        answer = (await client.post("/v1/chat/completions", json=body, headers=headers)).json()
        usage = answer["usage"]
        found.append(
            (
                usage["prompt_tokens"],
                (usage["prompt_tokens_details"] or {}).get("cached_tokens", 0),
                usage["completion_tokens"],
            )
        )
        return answer["choices"][0]["message"]["content"] or ""

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        for number in range(4):
            tenant = {"X-Gateway-Inference-Fairness-ID": "acme%20%C3%A4", "X-Gateway-Inference-Objective": "batch"}
            headers = {"X-Dynamo-Session-ID": f"s{number}", **tenant} if number % 2 else {}
            messages = [SYSTEM, {"role": "user", "content": f"Question {number}: how does it work?"}]
            for turn in range(3):
                said = await chat(messages, headers)
                messages += [{"role": "assistant", "content": said}, {"role": "user", "content": f"And then {turn}?"}]
                if number == 1 and not turn:
                    child = {"X-Dynamo-Session-ID": "child", "X-Dynamo-Parent-Session-ID": "s1"}
                    await chat([SYSTEM, {"role": "user", "content": "A part of it."}], child)
        await chat([{"role": "user", "content": "Look up the weather"}], {}, tools=[TOOL], tool_choice="required")
    app.close()
    await app.closed()
    return found


def turns_of(workload: Workload) -> list[tuple[int | None, int | None]]:
    return [
        (turn.synthetic.tokens if turn.synthetic else None, turn.max_tokens)
        for session in workload.sessions.values()
        for turn in session.turns
    ]


@pytest.mark.parametrize("form", OUTS)
def test_what_was_served_is_read_back(form: str, tmp_path: Path) -> None:
    out = f"{tmp_path}/{OUTS[form]}"
    setting = "record_workload" if form == "mooncake_trace" else "trace_out"
    served = asyncio.run(traffic(**{setting: out}))
    workload = load(out)
    assert workload.format == form
    lengths = [len(session.turns) for session in workload.sessions.values()]
    if form != "otel_spans":  # of which it is not known that a call waited for the child
        assert sorted(lengths) == [1, 1, 3, 3, 3, 3]
    assert sorted(tokens for _, tokens in turns_of(workload)) == sorted(tokens for *_, tokens in served)
    if form == "mooncake_trace":
        tenants = {name: session.tenant for name, session in workload.sessions.items()}
        assert tenants["s1"] == tenants["s3"] == Tenant("acme ä", "batch")
        assert [tenants["child"], tenants["session-1"]] == [NOBODY, NOBODY]
    known = form not in ("otel_spans", "mooncake_trace")
    if known:
        assert sorted(tokens for tokens, _ in turns_of(workload)) == sorted(prompt for prompt, *_ in served)
    if form != "mooncake_trace":
        branches = [branch for session in workload.sessions.values() for turn in session.turns for branch in turn.branches]
        assert [len(branch.children) for branch in branches] == [1]
    columns = llmirage.simulate(out, **ENGINE)._columns()
    simulated = sorted(zip(columns["usage_prompt_tokens"], columns["usage_prompt_cache_read_tokens"], strict=True))
    more = _TEMPLATE if known else 0
    assert [prompt for prompt, _ in simulated] == sorted(prompt + more for prompt, *_ in served)
    if form == "weka_trace":  # whose traces have no times relative to one another, and hashes of their own
        return
    in_order = np.array(columns["usage_prompt_tokens"])[np.argsort(columns["start_s"], kind="stable")]
    assert in_order.tolist() == [prompt + more for prompt, *_ in served]
    firsts = sorted((prompt, cached) for prompt, cached, _ in served if prompt < 200)
    assert any(cached for _, cached in firsts)
    assert [cached for prompt, cached in simulated if prompt < 200 + more] == [cached for _, cached in firsts]


@pytest.mark.parametrize("form", [form for form in OUTS if form != "weka_trace"])  # whose traces stand alone in time
def test_a_request_that_came_first_and_ended_last_stands_first(form: str, tmp_path: Path) -> None:
    """Files are written as requests end."""
    out = f"{tmp_path}/{OUTS[form]}"

    async def overlapping() -> None:
        setting: dict[str, Any] = {"record_workload" if form == "mooncake_trace" else "trace_out": out}
        app = create_app(ClusterConfig(**ENGINE, **setting))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:

            async def ask(after_s: float, tokens: int) -> None:
                await asyncio.sleep(after_s)
                body = {"model": "m", "messages": [SYSTEM], "max_tokens": tokens, "min_tokens": tokens}
                assert (await client.post("/v1/chat/completions", json=body)).status_code == 200

            await asyncio.gather(ask(0, 1000), ask(0.5, 10), ask(1.0, 200))
        app.close()
        await app.closed()

    virtual_time.run(overlapping())
    columns = llmirage.simulate(out, **ENGINE, fixed_schedule=True)._columns()
    by_start = np.argsort(columns["start_s"], kind="stable")
    assert np.array(columns["usage_completion_tokens"])[by_start].tolist() == [1000, 10, 200]
    assert np.diff(np.array(columns["start_s"])[by_start]) == pytest.approx([0.5, 0.5], abs=0.01)


def test_what_was_recorded_runs_again(tmp_path: Path) -> None:
    """Against a server with an empty cache: prompts, replies and hits of first prompts as they were."""
    served = asyncio.run(traffic(record_workload=f"{tmp_path}/work.jsonl"))
    with llmirage.Server(port=0, speed=20, **ENGINE) as server:
        columns = llmirage.run(f"{tmp_path}/work.jsonl", url=server.base_url, speed=20)._columns()
    names = ("usage_prompt_tokens", "usage_completion_tokens")
    again = sorted(zip(*(columns[name] for name in names), strict=True))
    assert again == sorted((prompt, reply) for prompt, _, reply in served)
    hits = [
        cached or 0
        for prompt, cached in zip(columns[names[0]], columns["usage_prompt_cache_read_tokens"], strict=True)
        if prompt < 200
    ]
    assert sorted(hits) == sorted(cached for prompt, cached, _ in served if prompt < 200)


@st.composite
def plays(draw: st.DrawFn) -> list[TracedRequest]:
    """Requests of sessions in the order in which they end: each session one after the other, children within a tree."""
    made: list[TracedRequest] = []
    last: dict[str, tuple[float, list[int]]] = {}
    for number in range(draw(st.integers(1, 12))):
        name = draw(st.sampled_from(("a", "b", "c", "d")))
        parent = {"c": "a", "d": "a"}.get(name)
        if parent is not None and parent not in last:
            name, parent = "b", None
        begins_s, prompt = last.get(name, last[parent] if parent else (0.0, []))
        start_s = begins_s + draw(st.integers(0, 4000)) / 1000
        end_s = start_s + draw(st.integers(1, 4000)) / 1000
        shared = prompt if draw(st.booleans()) or parent is None else []
        prompt = [*shared, *draw(st.lists(st.integers(0, 3), min_size=1, max_size=40))]
        last[name] = end_s, prompt
        made.append(traced(f"r{number}", start_s, end_s, prompt, draw(st.integers(1, 9)), session=name, parent=parent))
    return sorted(made, key=lambda one: one.end_s)


@given(plays(), st.sampled_from((1, 4, 16)))
def test_any_play_keeps_its_turns_waits_and_sharing(requests: list[TracedRequest], block: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for writer, name in ((DynamoWriter, "a.jsonl"), (MooncakeWriter, "b.jsonl"), (WekaWriter, "c")):
            path = Path(folder) / name
            made = writer(path, block)
            for request in requests:
                made.write([request])
            workload = load(str(path))
            expected = sorted((one.prompt_tokens, one.output_tokens) for one in requests)
            assert sorted(turns_of(workload)) == expected  # type: ignore[type-var]
            whole = [turn for session in workload.sessions.values() for turn in session.turns]
            for one in whole:
                assert one.synthetic is not None
                assert one.synthetic.block_ids is not None
            if writer is not WekaWriter:
                ids = {id for turn in whole for id in turn.synthetic.block_ids[: turn.synthetic.tokens // block].tolist()}
                prompts = [tuple(memoryview(one.prompt).cast("i")) for one in requests]
                blocks = {prompt[:end] for prompt in prompts for end in range(block, len(prompt) + 1, block)}
                assert len(ids) == len(blocks)
                started = {child for turn in whole for branch in turn.branches for child in branch.children}
                named = {child.rpartition("/")[2] for child in started}
                assert named == {one.session for one in requests if one.parent is not None}
            own = sorted((one for one in requests if one.session == "b"), key=lambda one: one.arrival_s)
            read = next((session for session in workload.sessions.values() if session.id.rpartition("/")[2] == "b"), None)
            if own and read is not None:
                waits = [round(later.arrival_s - earlier.end_s, 3) for earlier, later in pairwise(own)]
                assert [round(turn.delay_s, 3) for turn in read.turns[1:]] == waits


def test_recorded_calls_become_sessions(tmp_path: Path) -> None:
    """By header or by what they continue; two at once are two; other APIs' bodies stay as they are."""
    path = "/v1/chat/completions"
    first = [{"role": "user", "content": "Hello"}]
    second = [*first, {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "And?"}]
    body = {"model": "m", "stream": True, "tools": [TOOL], "temperature": 0.5, "max_tokens": 99}
    writer = WorkloadWriter(tmp_path / "work.jsonl")
    calls = [
        recorded_call(path, {**body, "messages": first}, 10.0, 11.0, 7, None),
        recorded_call(path, {**body, "messages": second}, 13.0, 14.0, 8, None),
        recorded_call(path, {**body, "messages": first}, 20.0, 30.0, 9, "named"),
        recorded_call(path, {**body, "messages": first}, 21.0, 22.0, 9, "named"),
        recorded_call("/v1/responses", {"model": "m", "input": "Hello"}, 23.0, 24.0, 3, "named"),
        recorded_call("/v1/completions?x", {"prompt": "Hello", "max_tokens": 4}, 24.0, 25.0, 4, None),
    ]
    for call in calls:
        writer.add([call])
    sessions = list(load(str(tmp_path / "work.jsonl")).sessions.values())
    assert [len(session.turns) for session in sessions] == [2, 1, 1, 1, 1]
    assert [session.arrival_s for session in sessions] == [0.0, 10.0, 11.0, 13.0, 14.0]
    turn = sessions[0].turns[1]
    assert (list(turn.messages), turn.delay_s, turn.max_tokens) == (second, 2.0, 8)
    assert (turn.tools, turn.extra) == ((TOOL,), {"temperature": 0.5})
    assert sessions[3].turns[0].payload == {"model": "m", "input": "Hello"}


def test_prompts_of_token_ids_are_recorded_as_they_are(tmp_path: Path) -> None:
    writer = WorkloadWriter(tmp_path / "work.jsonl")
    writer.write(
        [traced("a", 0.0, 1.0, [5, 6], path="/v1/completions", messages=(), body={"model": "m", "prompt": [[5, 6], [7]]})]
    )
    [session] = load(str(tmp_path / "work.jsonl")).sessions.values()
    assert session.turns[0].payload == {"model": "m", "prompt": [5, 6], "n": 1}


def test_every_line_of_a_trace_is_json_of_its_own(tmp_path: Path) -> None:
    asyncio.run(traffic(trace_out=f"{tmp_path}/a.jsonl", record_workload=f"{tmp_path}/b.jsonl"))
    for name in ("a.jsonl", "b.jsonl"):
        assert len([json.loads(line) for line in (tmp_path / name).read_text().splitlines()]) == 14

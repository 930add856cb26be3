"""Turns given in tokens: counts are exact by the server's own count, prefixes are shared as far as the counts allow."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmirage_client.load.calls import TokenCalls, short_prompts, thread_of
from llmirage_client.load.conversation import Family, Identifiers
from llmirage_client.load.options import RunOptions
from llmirage_client.targets.target import Call
from llmirage_client.workload.session import Session, TokenSpec, Turn, Workload
from llmirage_shared.prompt_encoder import EmbeddedTemplate, PromptEncoder
from llmirage_shared.synthetic_text import SyntheticText
from llmirage_shared.tokenizer_loader import embedded

ENCODER = PromptEncoder(embedded(), EmbeddedTemplate())
REPLIES = SyntheticText(embedded(), seed=99)
OURS = {"endpoint_kind": "llmirage", "model": "m", "seed": 1}


def session(*specs: TokenSpec, name: str = "s") -> Session:
    return Session(name, tuple(Turn(tokens=spec) for spec in specs), mode="tokens", line=7)


def sizes(*pairs: tuple[int, int]) -> Session:
    return session(*(TokenSpec(*pair) for pair in pairs))


def prompt_ids(body: Any) -> list[int]:
    ids: list[int] = ENCODER.encode_chat(body["messages"]).tolist()
    return ids


def shared_prefix(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def full_reply(call: Call) -> dict[str, str]:
    return {"role": "assistant", "content": REPLIES.text(5, call.body["max_completion_tokens"])}


def run(bench: Any, flow_session: Session, **options: Any) -> Any:
    target = bench.FakeTarget(answer=full_reply)
    return bench.run(bench.workload(flow_session), target, **(OURS | options))


def test_each_call_continues_the_one_before_when_it_fits(bench: Any) -> None:
    result, target = run(bench, sizes((200, 50), (400, 20), (500, 10)))
    prompts = [prompt_ids(sent.call.body) for sent in target.sent]
    assert [len(prompt) for prompt in prompts] == [200, 400, 500]
    assert prompts[1][:200] == prompts[0]
    assert prompts[2][:400] == prompts[1]
    assert [message["role"] for message in target.sent[1].call.body["messages"]] == ["user", "assistant", "user"]
    assert [(r.input_tokens, r.output_tokens_asked) for r in result.records] == [(200, 50), (400, 20), (500, 10)]


def test_where_prompt_and_reply_do_not_fit_the_reply_is_dropped_and_the_prompt_kept(bench: Any) -> None:
    _, target = run(bench, sizes((1472, 133), (1582, 125), (1734, 77)))
    prompts = [prompt_ids(sent.call.body) for sent in target.sent]
    assert [len(prompt) for prompt in prompts] == [1472, 1582, 1734]
    assert shared_prefix(prompts[0], prompts[1]) >= 1472 - 3  # all but the end of the turn
    assert [len(sent.call.body["messages"]) for sent in target.sent] == [1, 1, 3]


def test_a_shorter_prompt_is_a_prefix_of_the_longer(bench: Any) -> None:
    _, target = run(bench, sizes((300, 10), (600, 10), (120, 10)))
    prompts = [prompt_ids(sent.call.body) for sent in target.sent]
    assert len(prompts[2]) == 120
    assert shared_prefix(prompts[0], prompts[2]) >= 120 - 3


def test_with_session_prefix_none_calls_share_next_to_nothing(bench: Any) -> None:
    _, target = run(bench, sizes((200, 10), (400, 10)), session_prefix="none")
    prompts = [prompt_ids(sent.call.body) for sent in target.sent]
    assert [len(prompt) for prompt in prompts] == [200, 400]
    assert shared_prefix(*prompts) < 20


@given(st.lists(st.tuples(st.integers(8, 900), st.integers(1, 300)), min_size=1, max_size=8))
def test_any_sequence_of_counts_is_met_exactly(pairs: list[tuple[int, int]]) -> None:
    own = sizes(*pairs)
    conversation = Family(Workload("agentic_jsonl", "x", {"s": own}, ("s",)), Identifiers(1)).root(own)
    calls = TokenCalls(RunOptions(**OURS))
    for turn in own.turns:
        body = calls.plan(conversation, turn).call.body
        assert turn.tokens is not None
        assert len(prompt_ids(body)) == turn.tokens.input_tokens
        thread_of(conversation).history.append({"role": "assistant", "content": REPLIES.text(3, turn.tokens.output_tokens)})


def test_ids_go_as_they_are_where_the_endpoint_takes_them(bench: Any) -> None:
    ids = np.arange(40, 100, dtype=np.int32)
    _, target = bench.run(bench.workload(session(TokenSpec(60, 9, ids))), **OURS)
    call = target.sent[0].call
    assert call.path == "/completions"
    assert call.body == {
        "prompt": list(range(40, 100)),
        "model": "m",
        "stream": True,
        "max_tokens": 9,
        "min_tokens": 9,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }


def test_elsewhere_ids_become_text_of_as_many_tokens_with_the_same_shared_prefixes(bench: Any) -> None:
    ids = np.random.default_rng(0).integers(0, 150_000, 900).astype(np.int32)
    other = np.concatenate([ids[:400], ids[:500] + 1]).astype(np.int32)
    flow = session(TokenSpec(600, 9, ids[:600]), TokenSpec(900, 9, ids), TokenSpec(900, 9, other))
    result, target = bench.run(bench.workload(flow), endpoint_kind="other")
    prompts = [prompt_ids(sent.call.body) for sent in target.sent]
    assert [len(prompt) for prompt in prompts] == [600, 900, 900]
    assert shared_prefix(prompts[0], prompts[1]) >= 596
    assert 390 <= shared_prefix(prompts[1], prompts[2]) <= 402
    assert "ignore_eos" not in target.sent[0].call.body  # an endpoint may refuse what it does not know
    assert result.records[0].input_tokens is None  # whose tokenizer is unknown: its own usage counts


def test_text_prompts_of_completions_have_no_template(bench: Any) -> None:
    _, target = bench.run(bench.workload(sizes((3, 2), (80, 2))), endpoint_type="completions", **OURS)
    texts = [str(sent.call.body["prompt"]) for sent in target.sent]
    assert [len(embedded().encode(text)) for text in texts] == [3, 80]
    assert texts[1].startswith(texts[0])


def test_prompts_shorter_than_the_template_are_refused_with_their_line(bench: Any) -> None:
    flow = bench.workload(sizes((2, 5), (50, 5), (1, 5)))
    problems = short_prompts(flow, RunOptions(**OURS))
    assert [problem.line for problem in problems] == [7, 7]
    assert "of 2 tokens" in problems[0].message
    assert not short_prompts(flow, RunOptions(**OURS, endpoint_type="completions"))


@pytest.mark.parametrize("kind", ["llmirage", "other"])
def test_the_same_seed_writes_the_same_prompts(bench: Any, kind: str) -> None:
    def bodies(seed: int) -> list[Any]:
        return [s.call.body for s in run(bench, sizes((90, 10), (200, 5)), seed=seed, endpoint_kind=kind)[1].sent]

    assert bodies(1) == bodies(1) != bodies(2)

"""Repeats with fresh tokens: what stays, what changes, and that as many tokens are sent as before."""

from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest

from llmirage_client.load.options import RunOptions, Share
from llmirage_client.load.plan import Sampler
from llmirage_client.load.variation import Variation, common_shares, common_tokens
from llmirage_client.workload import registry
from llmirage_client.workload.session import Branch, Session, SyntheticUser, TokenSpec, Turn, Workload
from llmirage_shared.tokenizer_loader import load

SYSTEM = {"role": "system", "content": "You are an agent that reads code and mends what is wrong in it, line by line."}
TASK = "Please read the module that parses dates and tell me why the tests of leap years fail on some of our machines."
FILE = (
    "def leap(year: int) -> bool:\n    return year % 4 == 0 and the century rule is not here at all for some reason\n\nend"
)
SHARED = "The manual that all of us share says that the answer has to name a file, a line and the reason for it."


def ids_of(session: Session, workload: Workload, repeat: int, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    variation, session = Variation(workload, RunOptions(seed=seed)), replace(session, repeat=repeat)
    specs = [variation.turn(session, index).tokens for index in range(len(session.turns))]
    return [spec.input_ids for spec in specs if spec is not None and spec.input_ids is not None]


def with_ids(*prompts: list[list[int]]) -> Workload:
    sessions = [
        Session(
            f"s{n}", tuple(Turn(tokens=TokenSpec(len(ids), 4, np.array(ids, dtype=np.int32))) for ids in turns), "tokens"
        )
        for n, turns in enumerate(prompts)
    ]
    return Workload.of_roots("agentic_jsonl", "x", sessions)


def messages(text: str, repeat: int, role: str = "user", others: tuple[Session, ...] = (), seed: int = 0) -> list[str]:
    session = Session("a", (Turn(messages=(SYSTEM, {"role": role, "content": text})),), repeat=repeat)
    workload = Workload.of_roots("dag_jsonl", "x", [replace(session, repeat=0), *others])
    return [str(m["content"]) for m in Variation(workload, RunOptions(seed=seed)).turn(session, 0).messages]


def test_token_ids_that_conversations_share_stay_and_all_after_them_change() -> None:
    workload = with_ids([[1, 2, 3, 10, 11], [1, 2, 3, 10, 11, 12, 13]], [[1, 2, 3, 20, 21, 22]])
    assert common_tokens(workload) == {"s0": 3, "s1": 3}
    for session in workload.sessions.values():
        seen = set()
        for repeat in range(1, 6):
            for turn, ids in zip(session.turns, ids_of(session, workload, repeat), strict=True):
                assert turn.tokens is not None
                assert turn.tokens.input_ids is not None
                assert ids.dtype == np.int32
                assert len(ids) == turn.tokens.input_tokens
                assert ids[:3].tolist() == [1, 2, 3]
                assert ids[3] != turn.tokens.input_ids[3]
                assert set(ids.tolist()) <= {1, 2, 3, 10, 11, 12, 13, 20, 21, 22}
            seen.add(int(ids_of(session, workload, repeat)[0][3]))
        assert len(seen) == 5


def test_prompts_of_a_repeat_extend_each_other_as_in_the_file() -> None:
    workload = registry.load("bundled:coding-agent")
    session = workload.sessions[workload.roots[0]]
    one, two = ids_of(session, workload, 1), ids_of(session, workload, 2)
    for before, after, again in zip(one, one[1:], two[1:], strict=False):
        assert np.array_equal(after[: len(before)], before)
        assert (after != again).mean() > 0.5


def test_the_seed_alone_decides() -> None:
    workload = with_ids([[1, 2, 3, 10, 11, 12, 14]], [[1, 2, 3, 20, 21]])
    session = workload.sessions["s0"]
    assert np.array_equal(ids_of(session, workload, 1, 5)[0], ids_of(session, workload, 1, 5)[0])
    assert not np.array_equal(ids_of(session, workload, 1, 5)[0], ids_of(session, workload, 1, 6)[0])
    assert messages(TASK, 1, seed=1) == messages(TASK, 1, seed=1) != messages(TASK, 1, seed=2)


@pytest.mark.parametrize("role", ["user", "tool", "assistant"])
@pytest.mark.parametrize("text", [TASK, FILE, "go on", "Yes, please."])
def test_texts_change_and_have_as_many_tokens(role: str, text: str) -> None:
    tokenizer = load(None)[0]
    varied = [messages(text, repeat, role) for repeat in range(1, 4)]
    assert all(system == SYSTEM["content"] for system, _ in varied)
    assert len({content for _, content in varied} | {text}) == 4
    assert all(len(tokenizer.encode(content)) == len(tokenizer.encode(text)) for _, content in varied)


def test_first_paragraphs_that_conversations_share_stay() -> None:
    other = Session("b", (Turn(messages=({"role": "user", "content": f"{SHARED}\n\nAnother task of somebody else."},)),))
    [_, content] = messages(f"{SHARED}\n\n{TASK}\n\n{SHARED}", 1, others=(other,))
    kept, own, after = content.split("\n\n")
    assert kept == SHARED
    assert own != TASK
    assert after != SHARED
    assert sorted([*own.split(), *after.split()]) == sorted([*TASK.split(), *SHARED.split()])


def test_bodies_parts_and_synthetic_messages_vary_too() -> None:
    parts = [{"type": "text", "text": TASK}, {"type": "image_url", "image_url": {"url": "data:x"}}]
    payload = {"model": "m", "messages": [SYSTEM, {"role": "user", "content": parts}], "tools": [{"name": "f"}]}
    written = SyntheticUser(20, key=7, block_ids=np.array([1, 2, 3]), block_tokens=5)
    other = SyntheticUser(20, key=8, block_ids=np.array([1, 9]), block_tokens=5)
    sessions = [
        Session("v", (Turn(payload=payload),), "verbatim"),
        Session("t", (Turn(synthetic=written),)),
        Session("u", (Turn(synthetic=other),)),
    ]
    workload = Workload.of_roots("any", "x", sessions)
    variation = Variation(workload, RunOptions())
    body = variation.turn(replace(sessions[0], repeat=1), 0).payload
    assert body is not None
    assert body["tools"] == payload["tools"]
    assert body["messages"][0] == SYSTEM
    text, image = body["messages"][1]["content"]
    assert image == parts[1]
    assert text["text"] != TASK
    synthetic = variation.turn(replace(sessions[1], repeat=1), 0).synthetic
    assert synthetic is not None
    assert synthetic.block_ids is not None
    assert synthetic.key != 7
    assert synthetic.block_ids[0] == 1
    assert not set(synthetic.block_ids[1:].tolist()) & {2, 3, 9}


def test_the_first_run_of_a_conversation_is_what_the_file_says() -> None:
    session = Session("a", (Turn(messages=({"role": "user", "content": TASK},)),))
    assert Variation(Workload.of_roots("x", "x", [session]), RunOptions()).turn(session, 0) is session.turns[0]


@pytest.mark.parametrize("strategy", ["sequential", "shuffle", "random"])
def test_each_repeat_has_a_number_of_its_own_whichever_worker_runs_it(strategy: Any) -> None:
    sessions = [Session(f"s{n}", (Turn(messages=({"role": "user", "content": "x"},)),)) for n in range(3)]
    workload = Workload.of_roots("x", "x", sessions)
    alone = [(s.id, s.repeat) for s in islice(Sampler(workload, strategy, 1, vary=True), 12)]
    assert len(set(alone)) == 12
    shares = [Sampler(workload, strategy, 1, share=Share(index, 2), vary=True) for index in range(2)]
    parts = [[(s.id, s.repeat) for s in islice(share, 6)] for share in shares]
    assert [parts[place % 2][place // 2] for place in range(12)] == alone
    later = [(s.id, s.repeat) for s in islice(Sampler(workload, strategy, 1, skip=7, vary=True), 5)]
    assert later == alone[7:]
    assert not any(s.repeat for s in islice(Sampler(workload, strategy, 1), 12))


def test_children_vary_with_their_root(bench: Any) -> None:
    child = Session("child", (Turn(messages=({"role": "user", "content": f"{TASK} Now."},)),))
    branch = Branch("root:0", "spawn", ("child",))
    root = Session("root", (Turn(messages=(SYSTEM, {"role": "user", "content": TASK}), branches=(branch,)),))
    workload = Workload("dag_jsonl", "x", {"root": root, "child": child}, ("root",))
    for vary, distinct in ((True, 3), (False, 1)):
        _, target = bench.run(workload, num_conversations=3, vary=vary)
        said = [[str(m["content"]) for m in sent.call.body["messages"]] for sent in target.sent]
        assert len({content[-1] for content in said if len(content) == 2}) == distinct
        assert len({content[-1] for content in said if len(content) == 1}) == distinct
        assert {content[0] for content in said if len(content) == 2} == {SYSTEM["content"]}


def test_the_share_of_a_first_prompt_that_others_have() -> None:
    shares = common_shares(with_ids([[1, 2, 3, 4]], [[1, 2, 9, 9]], [[7, 7]]))
    assert shares == {"s0": 0.5, "s1": 0.5, "s2": 0.0}

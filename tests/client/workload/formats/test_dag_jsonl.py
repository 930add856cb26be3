"""dag_jsonl files load as documented; bad ones are refused with every problem, each with its line."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from workload_files import problems_of, write_whole

from llmirage_client.workload.dag_graph import branches_of, group_spawns
from llmirage_client.workload.dag_schema import ForkEntry, SpawnEntry
from llmirage_client.workload.registry import load
from llmirage_client.workload.session import Branch, Round, ThinkTime, Workload, WorkloadError
from llmirage_client.workload.summary import summarise

DATA = Path(__file__).resolve().parents[3] / "data"
USER = {"messages": [{"role": "user", "content": "x"}]}


def cases(name: str) -> list[Any]:
    rows = [json.loads(line) for line in (DATA / name).read_text().splitlines()]
    return [pytest.param(row, id=row["name"]) for row in rows]


def load_rows(tmp_path: Path, *rows: dict[str, Any]) -> Workload:
    return load(write_whole(tmp_path, "\n".join(json.dumps(row) for row in rows)), "dag_jsonl")


@pytest.mark.parametrize("case", cases("dag_valid.jsonl"))
def test_a_valid_file_has_the_documented_roots_and_number_of_requests(case: dict[str, Any], tmp_path: Path) -> None:
    workload = load(write_whole(tmp_path, case["file"]))
    assert workload.format == "dag_jsonl"
    assert list(workload.roots) == case["roots"]
    assert summarise(workload).requests == case["requests"]


@pytest.mark.parametrize("case", cases("dag_invalid.jsonl"))
def test_an_invalid_file_is_refused_with_exactly_its_problems(case: dict[str, Any], tmp_path: Path) -> None:
    path = write_whole(tmp_path, case["file"])
    assert problems_of(path, "dag_jsonl") == case["problems"]
    for first in problems_of(path):
        assert first.startswith(case["problems"][0].split(":")[0]) or first in case["problems"]


def test_every_message_of_the_documentation_is_given() -> None:
    documented = [
        "line 2: invalid JSON: ",
        "line 1: session_id: Field required",
        "line 3: duplicate session_id 'branch-a'",
        "line 1: turns: List should have at least 1 item after validation, not 0",
        "line 1: turns.0.messages: Field required",
        "line 1: turns.0.messages: Input should be a valid list",
        "line 1: turns.0.max_token: Extra inputs are not permitted",
        "line 1: not_a_real_field: Extra inputs are not permitted",
        "Value error, Each message must have a 'role' key, but message at index 1 does not",
        "session 'branch-a' turn 0: non-root turns may not contain a 'system' message. ",
        "session 'root' turn 0: branch target 'brnch-a' not declared. Known sessions: [",
        "cycle detected: A -> B -> A",
        "session 'Y' forked by both 'A' turn 0 and 'B' turn 0; FORK-mode children require a single parent",
        "session 'X' turn 0 has foreground FORK branches but is not the last turn and no join is declared",
        "session 'Y' is referenced by 'X' pre_session_spawns but is also a FORK target; pre-session children must be SPAWN",
    ]
    given_messages = "\n".join(problem for case in cases("dag_invalid.jsonl") for problem in case.values[0]["problems"])
    missing = [m for m in documented if m not in given_messages and m.replace("line 1", "line 2") not in given_messages]
    assert not missing


def test_the_documentation_s_example_means_what_it_says() -> None:
    workload = load("bundled:dag-example")
    root, branch_a = workload.sessions["root"], workload.sessions["branch-a"]
    assert root.turns[0].branches == (Branch("root:0", "fork", ("branch-a", "branch-b")),)
    assert root.turns[0].max_tokens == 128
    assert [m["content"] for m in branch_a.turns[1].messages] == [
        "Now tighten the expansion.",
        "Keep the counter-argument intact.",
    ]
    assert (root.line, branch_a.line) == (1, 2)
    assert workload.branching
    assert not workload.timed


def test_milliseconds_become_seconds_and_request_parameters_are_kept(tmp_path: Path) -> None:
    turn = {**USER, "delay": 250, "model": "m", "tools": [], "extra": {"stop": ["\n"], "seed": 2**70}}
    session = load_rows(tmp_path, {"session_id": "a", "turns": [USER, turn]}).sessions["a"]
    assert session.turns[0].tools is None
    assert session.turns[1].tools == ()
    assert session.turns[1].delay_s == 0.25
    assert session.turns[1].extra == {"stop": ["\n"], "seed": 2**70}


def test_null_is_the_same_as_absent_where_the_schema_allows_it(tmp_path: Path) -> None:
    turn = {**USER, "model": None, "max_tokens": None, "tools": None, "extra": None}
    row = {"session_id": "a", "turns": [turn], "rounds": None, "think_time_ms": None, "context_mode": None}
    session = load_rows(tmp_path, row).sessions["a"]
    assert session == load_rows(tmp_path, {"session_id": "a", "turns": [USER]}).sessions["a"]


@pytest.mark.parametrize("value", [128, 128.0, "128"])
def test_an_integer_may_be_written_in_three_ways(value: object, tmp_path: Path) -> None:
    turn = load_rows(tmp_path, {"session_id": "a", "turns": [{**USER, "max_tokens": value}]}).sessions["a"].turns[0]
    assert turn.max_tokens == 128
    assert type(turn.max_tokens) is int


@pytest.mark.parametrize(
    ("forks", "spawns", "expected"),
    [
        (["a", "b"], [], [("s:0", "fork", "ab", None, False)]),
        (["+a", "+b"], [], [("s:0", "fork", "ab", None, True)]),
        (["a", "+b"], [], [("s:0:fork", "fork", "a", None, False), ("s:0:bg_fork", "fork", "b", None, True)]),
        (["+a"], ["b"], [("s:0:bg_fork", "fork", "a", None, True), ("s:0:spawn", "spawn", "b", 1, False)]),
        ([], ["a", "b"], [("s:0", "spawn", "ab", 1, False)]),
        ([], [("a", 2)], [("s:0", "spawn", "a", 2, False)]),
        (
            [],
            ["a", ("b", 2), "c", "d"],
            [
                ("s:0:spawn", "spawn", "a", 1, False),
                ("s:0:spawn1", "spawn", "b", 2, False),
                ("s:0:spawn2", "spawn", "cd", 1, False),
            ],
        ),
        ([], [("a", None), ("b", None)], [("s:0:spawn", "spawn", "a", 1, False), ("s:0:spawn1", "spawn", "b", 1, False)]),
    ],
)
def test_shorthands_become_branches(forks: list[str], spawns: list[Any], expected: list[Any]) -> None:
    """+x is a background fork; ("x", n) a spawn object with join_at n; the turn is the first of three."""
    fork_entries = [ForkEntry(f.removeprefix("+"), f.startswith("+")) for f in forks]
    entries = [SpawnEntry((s,), bare=True) if isinstance(s, str) else SpawnEntry((s[0],), s[1]) for s in spawns]
    branches = branches_of("s:0", 0, 3, fork_entries, group_spawns(entries))
    assert [(b.id, b.kind, "".join(b.children), b.join_at, b.background) for b in branches] == expected


def test_a_spawn_on_the_last_turn_has_nobody_waiting(tmp_path: Path) -> None:
    rows = [{"session_id": "a", "turns": [{**USER, "spawns": ["k"]}]}, {"session_id": "k", "turns": [USER]}]
    assert load_rows(tmp_path, *rows).sessions["a"].turns[0].branches == (Branch("a:0", "spawn", ("k",), None),)


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("deltas_without_responses", "accumulate"),
        ("deltas_with_responses", "accumulate_authored"),
        ("message_array_with_responses", "isolated"),
    ],
)
def test_context_modes(name: str, mode: str, tmp_path: Path) -> None:
    assert load_rows(tmp_path, {"session_id": "a", "turns": [USER], "context_mode": name}).sessions["a"].mode == mode


def test_an_isolated_session_may_open_every_turn_with_a_system_message(tmp_path: Path) -> None:
    turn = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "x"}]}
    row = {"session_id": "a", "turns": [turn, turn], "context_mode": "message_array_with_responses"}
    assert len(load_rows(tmp_path, row).sessions["a"].turns) == 2


def test_rounds_by_number_and_by_list(tmp_path: Path) -> None:
    kids = [{"session_id": sid, "turns": [USER]} for sid in "ab"]
    base = {"session_id": "o", "orchestrator": True}
    times = {"think_time_ms": 100, "think_time_sigma": 0.5, "think_time_min_ms": 10, "think_time_max_ms": 400}
    by_number = load_rows(tmp_path, {**base, **times, "rounds": 2, "spawns": ["a", "b"]}, *kids).sessions["o"]
    assert by_number.rounds == (Round(("a", "b"), 0.1), Round(("a", "b"), 0.1))
    assert by_number.think_time == ThinkTime(0.1, 0.5, 0.01, 0.4)
    rounds = [{"spawns": ["a"]}, {"spawns": ["b"], "think_time_ms": 250}]
    by_list = load_rows(tmp_path, {**base, "rounds": rounds, "think_time_ms": 5}, *kids).sessions["o"]
    assert by_list.rounds == (Round(("a",), 0.005), Round(("b",), 0.25))
    assert by_list.think_time is None
    assert load_rows(tmp_path, {**base, "spawns": ["a", "b"]}, *kids).sessions["o"].rounds == (
        Round(("a", "b"), awaited=False),
    )


def test_rounds_of_a_list_have_children_of_their_own(tmp_path: Path) -> None:
    rounds = [{"spawns": ["a", "b"]}, {"spawns": ["c"]}, {"spawns": ["b"]}]
    path = write_whole(tmp_path, json.dumps({"session_id": "o", "orchestrator": True, "rounds": rounds}))
    assert [problem for problem in problems_of(path, "dag_jsonl") if "more than one" in problem] == [
        "line 1: rounds.2.spawns: Value error, child session id 'b' is spawned by more than one round (rounds 0 and 2); "
        "each round of a list has children of its own"
    ]


def test_a_chain_of_five_thousand_forks_loads_and_its_cycle_is_found(tmp_path: Path) -> None:
    count = 5000
    rows: list[Any] = [{"session_id": f"s{i}", "turns": [{**USER, "forks": [f"s{i + 1}"]}]} for i in range(count)]
    leaf = {"session_id": f"s{count}", "turns": [USER]}
    summary = summarise(load_rows(tmp_path, *rows, leaf))
    assert (summary.requests, summary.depth) == (count + 1, count)
    leaf["turns"] = [{**USER, "spawns": ["s0"]}]
    with pytest.raises(WorkloadError) as caught:
        load_rows(tmp_path, *rows, leaf)
    assert [p.message.count(" -> ") for p in caught.value.problems] == [count + 1]


def test_a_pretty_printed_object_is_explained_in_one_line(tmp_path: Path) -> None:
    text = json.dumps({"session_id": "a", "turns": [USER]}, indent=2)
    assert problems_of(write_whole(tmp_path, text), "dag_jsonl") == [
        "line 1: the file is one JSON object over several lines; this format needs each on one line"
    ]


def test_deep_nesting_is_a_problem_of_its_line(tmp_path: Path) -> None:
    text = '{"session_id":"a","turns":' + "[" * 200_000
    assert problems_of(write_whole(tmp_path, text), "dag_jsonl") == ["line 1: invalid JSON: nested too deeply"]


def loads_or_is_refused(path: str, format_name: str | None = None) -> bool:
    try:
        return bool(load(path, format_name).sessions)
    except WorkloadError as error:
        return bool(error.problems)


# A random tree: every session is forked or spawned by an earlier one, at a random turn, or is a root.
@st.composite
def trees(draw: st.DrawFn) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for number in range(draw(st.integers(1, 8))):
        turns = [{"messages": [{"role": "user", "content": f"{number}.{i}"}]} for i in range(draw(st.integers(1, 4)))]
        rows.append({"session_id": f"s{number}", "turns": turns})
        if number == 0 or draw(st.integers(0, 3)) == 0:
            continue
        parent_turns = rows[draw(st.integers(0, number - 1))]["turns"]
        index = draw(st.integers(0, len(parent_turns) - 1))
        turn, last = parent_turns[index], index == len(parent_turns) - 1
        kind = draw(st.sampled_from(["fork", "background", "spawn", "join"]))
        if kind == "fork" and last:
            turn.setdefault("forks", []).append(f"s{number}")
        elif kind in ("fork", "background"):
            turn.setdefault("forks", []).append({"child": f"s{number}", "background": True})
        elif kind == "spawn" or last:
            turn.setdefault("spawns", []).append(f"s{number}")
        else:
            join_at = draw(st.integers(index + 1, len(parent_turns) - 1))
            turn.setdefault("spawns", []).append({"children": [f"s{number}"], "join_at": join_at})
    return rows


@given(trees())
def test_every_tree_sends_each_turn_once(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]) -> None:
    workload = load_rows(tmp_path_factory.mktemp("tree"), *rows)
    summary = summarise(workload)
    assert summary.requests == summary.turns == sum(len(row["turns"]) for row in rows)
    for session in workload.sessions.values():
        ids = [branch.id for turn in session.turns for branch in turn.branches]
        assert len(set(ids)) == len(ids)
        for index, turn in enumerate(session.turns):
            assert all(b.join_at is None or index < b.join_at < len(session.turns) for b in turn.branches)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, inner in steps for place in places(inner, (*path, key)))]


@given(trees(), st.data())
def test_a_mutated_file_loads_or_is_refused_but_never_breaks_the_loader(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], data: st.DataObject
) -> None:
    place = data.draw(st.sampled_from(places(rows)[1:]))
    value: Any = rows
    for step in place[:-1]:
        value = value[step]
    value[place[-1]] = data.draw(JSON_VALUES)
    text = "\n".join(json.dumps(row) for row in rows)
    path = write_whole(tmp_path_factory.mktemp("mutant"), text)
    for format_name in ("dag_jsonl", None):
        assert loads_or_is_refused(path, format_name)


@given(st.binary(max_size=60))
def test_any_bytes_after_a_good_line_load_or_are_refused(tmp_path_factory: pytest.TempPathFactory, tail: bytes) -> None:
    path = write_whole(
        tmp_path_factory.mktemp("tail"), json.dumps({"session_id": "a", "turns": [USER]}).encode() + b"\n" + tail
    )
    assert loads_or_is_refused(path)

"""inputs.json files are kept verbatim; every fault is named with its place and line."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from workload_files import problems_of, write_whole

from llmirage_client.workload.files import Places
from llmirage_client.workload.registry import detect, load
from llmirage_client.workload.session import WorkloadError

CASES = [
    json.loads(line) for line in (Path(__file__).resolve().parents[3] / "data/inputs_json.jsonl").read_text().splitlines()
]


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in CASES])
def test_a_file_loads_verbatim_or_is_refused_with_exactly_its_problems(case: dict[str, Any], tmp_path: Path) -> None:
    path = write_whole(tmp_path, case["file"])
    if case["problems"]:
        assert problems_of(path, "inputs_json") == case["problems"]
        return
    workload = load(path)
    data = json.loads(case["file"])["data"]
    assert workload.format == detect(path) == "inputs_json"
    assert list(workload.roots) == [entry["session_id"] for entry in data]
    for entry in data:
        session = workload.sessions[entry["session_id"]]
        assert session.mode == "verbatim"
        assert [turn.payload for turn in session.turns] == entry["payloads"]


def test_key_order_numbers_and_text_survive(tmp_path: Path) -> None:
    payload = '{"z":1,"a":123456789012345678901234567890,"f":0.1,"g":1.0,"text":"naïve ☃ 😀","n":null,"l":[true,{}]}'
    workload = load(write_whole(tmp_path, f'{{"data":[{{"session_id":"s","payloads":[{payload}]}}]}}'))
    kept = workload.sessions["s"].turns[0].payload
    assert json.dumps(kept, separators=(",", ":"), ensure_ascii=False) == payload


def test_the_loader_does_not_look_inside_a_payload(tmp_path: Path) -> None:
    workload = load(write_whole(tmp_path, '{"data":[{"session_id":"","payloads":[{},{"messages":"no list"}]}],"more":1}'))
    assert [turn.payload for turn in workload.sessions[""].turns] == [{}, {"messages": "no list"}]


@pytest.mark.parametrize("indent", [None, 0, 2])
def test_places_finds_the_line_of_any_value(indent: int | None) -> None:
    document = {"a": [1, {'b\n"]': "x}"}, [], {}], "c": {"d": {"e": None}}, "last": "here"}
    text = "\n" + json.dumps(document, indent=indent)
    places = Places(text)
    wanted: list[tuple[tuple[str, ...], str]] = [
        (("a", "1", 'b\n"]'), '"x}"'),
        (("c", "d", "e"), "null"),
        (("last",), '"here"'),
        (("a", "0"), "1"),
    ]
    for path, value in wanted:
        expected = text[: text.index(value)].count("\n") + 1
        assert places.line(path) == expected
    assert places.line(("c", "missing")) == places.line(("c",))
    assert places.line(("last", "0")) == places.line(("last",))


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["data", "session_id", "payloads"]), inner),
    max_leaves=12,
)


@given(JSON_VALUES, st.sampled_from([None, 0, 3]))
def test_any_document_loads_or_is_refused_with_lines_that_exist(
    tmp_path_factory: pytest.TempPathFactory, document: Any, indent: int | None
) -> None:
    text = json.dumps(document, indent=indent)
    path = write_whole(tmp_path_factory.mktemp("document"), text)
    try:
        workload = load(path, "inputs_json")
    except WorkloadError as error:
        lines = [problem.line for problem in error.problems]
        assert lines
        assert all(line is not None and 1 <= line <= text.count("\n") + 1 for line in lines)
    else:
        assert [[turn.payload for turn in s.turns] for s in workload.sessions.values()] == [
            entry["payloads"] for entry in document["data"]
        ]

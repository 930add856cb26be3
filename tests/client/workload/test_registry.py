"""Which format a file is in, what is said when none fits, and the workloads that ship with the package."""

import importlib
import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from workload_files import loads_or_is_refused, mutate, problems_of, write_whole
from workload_files import write as write_rows

from llmirage_client.workload import formats, registry
from llmirage_client.workload.format import first_keys

DATA = Path(__file__).resolve().parents[2] / "data"
DAG = '{"session_id":"a","turns":[{"messages":[{"role":"user","content":"x"}]}]}\n'
FLAT = '{"input_toks":3,"output_toks":2,"arrival_time_ns":0}\n'
INPUTS = '{"data":[{"session_id":"a","payloads":[{}]}]}'


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (DAG, "dag_jsonl"),
        ("\ufeff\n  \n" + DAG, "dag_jsonl"),
        ('{"session_id":"o","orchestrator":true,"spawns":["a"]}\n' + DAG, "dag_jsonl"),
        ('{"session_id":"a"}', "dag_jsonl"),
        ('{"broken\n' + DAG, "dag_jsonl"),
        ('{"session_id":"a","turns":[{"data":1', "dag_jsonl"),
        (FLAT, "agentic_jsonl"),
        ('{"session_id":"s","arrival_time_ns":0,"sub_requests":[', "agentic_jsonl"),
        ('{"note":"a comment"}\n' + FLAT, "agentic_jsonl"),
        (INPUTS, "inputs_json"),
        (INPUTS.replace("[", "[\n").replace(":", ":\n"), "inputs_json"),
        ('{\n  "data": [', "inputs_json"),
    ],
)
def test_the_content_tells_the_format(content: str, name: str, tmp_path: Path) -> None:
    assert registry.detect(write_whole(tmp_path, content)) == name


EXAMPLES = [file for folder in ("aiperf", "evalscope") for file in sorted((DATA / folder).iterdir())]


@pytest.mark.parametrize("file", [pytest.param(file, id=file.name) for file in EXAMPLES])
def test_no_format_takes_the_files_of_another(file: Path) -> None:
    name = {"trajectories": "swe_smith"}.get(file.stem, file.stem)
    assert registry.detect(str(file)) == name
    others = [other for other in registry.FORMATS.values() if other.name != name]
    lines = [] if file.is_dir() else file.read_bytes().splitlines()
    for line in lines:
        seen = first_keys(line)
        claimed = [other for other in others if seen.keys and other.recognises(seen.marks)]
        assert all(other.order > registry.FORMATS[name].order for other in claimed)


@pytest.mark.parametrize(
    ("content", "seen"),
    [
        ('{"colour":"red","role":"user"}', "the format is not known: the first object has the keys 'colour', 'role'. "),
        ("\n[1,2]", "line 2: Input should be a valid dictionary (a JSON object), got an array. "),
        ("{}", "line 1: the format is not known: the first object is empty. "),
        ("Dear sir,\n", "line 1: invalid JSON: Expecting value at column 1. "),
    ],
)
def test_an_unknown_file_is_told_what_was_seen_and_what_formats_need(content: str, seen: str, tmp_path: Path) -> None:
    (problem,) = problems_of(write_whole(tmp_path, content))
    assert problem.startswith(seen)
    for name, declared in registry.FORMATS.items():
        assert f"{name} needs {declared.needs}" in problem


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "is empty; a workload needs at least one session"),
        ("\ufeff \n\r\n", "is empty; a workload needs at least one session"),
        (b"\x7fELF\0\0\0", "is a binary file, not a workload in JSON or JSON Lines (UTF-8)"),
        (DAG.encode("utf-16"), "is a binary file, not a workload in JSON or JSON Lines (UTF-8)"),
        (b"\x1f\x8bnot gzip", "is a damaged gzip file: Unknown compression method"),
        (DAG.encode() + b'{"session_id":"\xff"}', "line 2: invalid JSON: not UTF-8 text: byte 0xff at column 16"),
    ],
)
def test_a_file_that_cannot_be_read_gets_one_clear_line(content: str | bytes, problem: str, tmp_path: Path) -> None:
    assert problems_of(write_whole(tmp_path, content)) == [problem]


DIRECTORIES = (
    "dynamo_request_trace, exgentic, otel_spans, weka_trace, sagemaker_capture, tracelab, random_pool, raw_payload, servegen"
)


def test_a_missing_file_and_a_directory_get_one_clear_line(tmp_path: Path) -> None:
    assert problems_of(str(tmp_path / "none.jsonl")) == ["no such file"]
    assert problems_of(str(tmp_path)) == [
        f"is a directory, and its files are not those of a format that may be one ({DIRECTORIES})"
    ]
    assert problems_of("") == problems_of("", "weka_trace") == ["no such file"]
    assert problems_of("nul\0byte") == ["cannot be read: embedded null byte"]


def test_the_format_may_be_forced_by_name_or_alias(tmp_path: Path) -> None:
    path = write_whole(tmp_path, FLAT)
    assert registry.load(path, "llmservingsim").format == registry.load(path, "flat_jsonl").format == "agentic_jsonl"
    assert problems_of(path, "dag_jsonl")[0] == "line 1: input_toks: Extra inputs are not permitted"
    (problem,) = problems_of(path, "sharegpt")
    names = ", ".join([*registry.FORMATS, *registry.ALIASES])
    assert problem == f"unknown format 'sharegpt'; choose one of {names}"


def test_a_new_format_is_one_module_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "colours_json.py").write_text(
        "from llmirage_client.workload.format import Format\n"
        "FORMAT = Format('colours_json', 'colours', 'a key colour', lambda keys: 'colour' in keys, lambda path: None)\n"
    )
    monkeypatch.setattr(formats, "__path__", [*formats.__path__, str(tmp_path)])
    try:
        assert "colours_json" in registry.find_formats()
    finally:
        sys.modules.pop("llmirage_client.workload.formats.colours_json", None)
        importlib.invalidate_caches()


def test_every_bundled_workload_loads_by_name() -> None:
    assert {"dag-example", "dag-three-roots", "coding-agent", "mixed-flat-agentic"} <= registry.bundled().keys()
    for name, path in registry.bundled().items():
        assert registry.load(f"bundled:{name}").path == f"bundled:{name}"
        assert registry.resolve_bundled(f"bundled:{name}") == str(path)


def test_an_unknown_bundled_name_lists_the_names_there_are() -> None:
    (problem,) = problems_of("bundled:dag")
    assert problem.startswith("there is no such bundled workload; choose one of chat, coding-agent, ")


TEXTS = [{"text": "a"}, {"session_id": "s", "text": "b"}, {"session_id": "s", "text": "c"}, {"text": "d"}]
ROWS = {
    "dag_jsonl": [
        {"session_id": name, "turns": [{"messages": [{"role": "user", "content": name}]}]} for name in ("root", "other")
    ],
    "single_turn": TEXTS,
    "random_pool": [{"type": "random_pool", "text": "x"}, {"text": "y"}],
    "multi_turn": [{"turns": TEXTS[:1]}, {"turns": TEXTS[:1]}],
    "mooncake_trace": [{"timestamp": at, "input_length": 9, "output_length": 2, "hash_ids": [1]} for at in (0, 5)],
    "raw_payload": [{"messages": [{"role": "user", "content": text}]} for text in "ab"],
    "custom_multi_turn": [[{"role": "user", "content": text}] for text in "ab"],
    "trie": [
        {
            "input_prompt_length": 9, "num_turns": 0, "assistant_response_length": [], "tool_call_output_length": [],
            "tool_call_latency": [], "final_assistant_response_length": length,
        }
        for length in (3, 4)
    ],
    "weka_trace": [
        {
            "id": name, "block_size": 4, "hash_id_scope": "local",
            "requests": [{"t": 0, "type": "s", "in": 8, "out": 2, "hash_ids": [1, 2]}],
        }
        for name in "ab"
    ],
}  # fmt: skip


@pytest.mark.parametrize("between", [", ", ",\n"])
@pytest.mark.parametrize("name", ROWS)
def test_an_array_of_rows_is_read_as_lines_of_them(tmp_path: Path, name: str, between: str) -> None:
    """Rows without a name of their own stay apart though they are on one line."""
    rows = [json.dumps(row) for row in ROWS[name]]
    same = registry.load(write_whole(tmp_path, "\n".join(rows)))
    workload = registry.load(write_whole(tmp_path, f"[{between.join(rows)}]"))
    assert workload.format == same.format == name
    assert repr(dict(workload.sessions)) == repr(dict(same.sessions))


def test_what_is_wrong_with_a_row_of_an_array_has_its_line_or_else_its_place(tmp_path: Path) -> None:
    rows = ['{"text": "a"}', '{"text": 3}', '{"texts": []}']
    found = problems_of(write_whole(tmp_path, f"[{','.join(rows)}]"))
    assert [problem.split(": ")[0] for problem in found] == ["row 2", "row 3"]
    found = problems_of(write_whole(tmp_path, "[\n\n" + ",\n".join(rows) + "\n]"))
    assert [problem.split(": ")[0] for problem in found] == ["line 4", "line 5"]
    assert problems_of(write_whole(tmp_path, f"[{','.join(rows[:1])}"))[0] == "line 1: invalid JSON: the array has no end"
    found = problems_of(write_whole(tmp_path, "\n".join(f"[{row}]" for row in rows)), "single_turn")
    assert [problem.partition(": Input")[0] for problem in found] == ["line 1", "line 2", "line 3"]


LINES = [json.loads(line) for file in EXAMPLES if file.suffix == ".jsonl" for line in file.read_text().splitlines()]


@given(st.data())
def test_any_mutant_of_an_example_has_a_format_or_none(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    rows = [mutate(data.draw(st.sampled_from(LINES)), data) for _ in range(data.draw(st.integers(1, 3)))]
    loads_or_is_refused(write_rows(tmp_path_factory.mktemp("mutant"), *rows), None)


@pytest.mark.parametrize(
    ("name", "left"),
    [("speed_bench", 2), ("speed_bench_qualitative", 2), ("speed_bench_math", 1), ("speed_bench_throughput_8k_math", 1)],
)
def test_the_rest_of_a_name_gives_an_option(tmp_path: Path, name: str, left: int) -> None:
    rows = [{"question_id": f"{place:032}", "category": kind, "messages": [{"role": "user", "content": "x"}]}
            for place, kind in enumerate(("math", "qa"))]  # fmt: skip
    assert len(registry.load(write_whole(tmp_path, "\n".join(map(json.dumps, rows))), name).roots) == left

"""`llmirage check`: a summary and status 0, or every problem and status 2; nothing is sent."""

from pathlib import Path

import pytest
from invoked import invoke


def test_a_valid_file_is_summarised() -> None:
    result = invoke("check", "bundled:dag-agent-team")
    assert result.stdout.splitlines() == [
        "bundled:dag-agent-team is valid",
        "  format          dag_jsonl",
        "  sessions        8, 1 root",
        "  turns           12",
        "  branches        3 forked children, 4 spawned children, 2 joins",
        "  depth           1",
        "  wire requests   12 when every root runs once",
    ]


def test_tokens_and_arrivals_are_summed(tmp_path: Path) -> None:
    ids = ",".join(map(str, range(40)))
    call = f'{{"input_toks":40,"output_toks":2,"input_tok_ids":[{ids}]}}'
    path = tmp_path / "w.jsonl"
    path.write_text(f'{{"session_id":"s","arrival_time_ns":2500000000,"colour":1,"sub_requests":[{call},{call}]}}')
    lines = invoke("check", path).stdout.splitlines()
    assert lines[5:] == [
        "  prompt tokens   80, mean 40 and longest 40 a call",
        "  reply tokens    4, mean 2 a call",
        "  token ids       in 2 of 2 calls",
        "  prefix reuse    40% of prompt tokens, with an unlimited cache",  # 32 of 80: whole blocks of 16
        "  arrivals        from 2.500 s to 2.500 s",
        "  note: 'colour' is not used (in 1 place)",
    ]


@pytest.mark.parametrize("option", ["--format", "--custom-dataset-type"])
def test_a_bad_file_gives_every_problem_with_its_place_and_status_2(option: str, tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    path.write_text('{"session_id":"a","turns":[]}\n{"turns":[{"messages":"x"}]}\n')
    result = invoke("check", path, option, "dag_jsonl", status=2)
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        f"{path}: line 1: turns: List should have at least 1 item after validation, not 0 "
        "('turns' must be non-empty unless 'orchestrator' is true)",
        f"{path}: line 2: session_id: Field required",
        f"{path}: line 2: turns.0.messages: Input should be a valid list",
        f"{path} is not valid: 3 problems",
    ]


def test_a_missing_file_is_one_line_and_status_2() -> None:
    result = invoke("check", "nowhere.jsonl", status=2)
    assert result.stderr == "nowhere.jsonl: no such file\n"

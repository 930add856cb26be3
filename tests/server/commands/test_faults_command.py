"""`llmirage faults` lists every fault, explains one, and says what is meant by one that is none."""

import json

import pytest
from click.testing import CliRunner

from llmirage_client.cli import main
from llmirage_server.faults.rule import FAULTS, read_rule
from llmirage_shared.yaml_lines import parse_mapping


def printed(*words: str) -> str:
    result = CliRunner().invoke(main, ["faults", *words])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_all_are_listed() -> None:
    lines = printed().splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "] == list(FAULTS)


@pytest.mark.parametrize("kind", FAULTS)
def test_one_is_explained_with_an_example_that_works(kind: str) -> None:
    text = printed(kind)
    assert text.startswith(f"{kind}: ")
    assert all(f"  {name} " in text for name in ("probability", "times", "until_s"))
    [entry] = parse_mapping(f"faults:\n{text.splitlines()[-1]}", "x", "a file")
    problems: list[str] = []
    assert entry.node.items is not None
    assert read_rule(entry.node.items[0], "it", lambda *told: problems.append(str(told))) is not None
    assert problems == []


def test_json() -> None:
    assert [fault["kind"] for fault in json.loads(printed("--json"))] == list(FAULTS)
    [cut] = json.loads(printed("cut", "--json"))
    assert [name for name, _ in cut["parameters"]] == ["after_tokens", "after_bytes", "clean"]


def test_one_that_is_none() -> None:
    result = CliRunner().invoke(main, ["faults", "stal"])
    assert result.exit_code == 2
    assert "there is no fault 'stal' (did you mean 'stall'?)" in result.stderr

"""`llmirage script`: check, init, schema; and `llmirage serve` with a wrong script."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from llmirage_client.cli import main
from llmirage_server.replies.scripts.rule import SCHEMA


def llmirage(*words: str) -> Result:
    return CliRunner().invoke(main, words)


def test_the_example_is_valid_and_is_not_overwritten(tmp_path: Path) -> None:
    path = str(tmp_path / "replies.yaml")
    assert f"llmirage serve --script {path}" in llmirage("script", "init", path).output
    checked = llmirage("script", "check", path)
    assert (checked.exit_code, checked.output) == (0, f"{path}: 7 rules, fallback generated\n")
    again = llmirage("script", "init", path)
    assert (again.exit_code, "--force overwrites it" in again.output) == (2, True)
    assert llmirage("script", "init", "--force", path).exit_code == 0


def test_check_tells_every_problem(tmp_path: Path) -> None:
    path = tmp_path / "replies.yaml"
    path.write_text("rules:\n  - when: {usr: a}\n    reply: 5\n  - reply: a\n  - reply: b\n")
    checked = llmirage("script", "check", str(path))
    assert checked.exit_code == 2
    assert [line.partition(" ")[0] for line in checked.stderr.splitlines()] == [f"{path}:{line}:" for line in (2, 3, 5)]


def test_schema_is_what_the_package_has() -> None:
    assert json.loads(llmirage("script", "schema").output) == SCHEMA


@pytest.mark.parametrize("how", ["flag", "variable", "cluster file"])
def test_serve_refuses_a_wrong_script(tmp_path: Path, how: str) -> None:
    path, cluster = tmp_path / "replies.yaml", tmp_path / "cluster.yaml"
    path.write_text("rules:\n  - wehn: {}\n    reply: a\n")
    cluster.write_text(f"script: {path}\n")
    flags = {"flag": ["--script", str(path)], "variable": [], "cluster file": ["--cluster", str(cluster)]}[how]
    environment = {"LLMIRAGE_SCRIPT": str(path)} if how == "variable" else {}
    done = CliRunner().invoke(main, ["serve", "--port", "0", *flags], env=environment)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"llmirage serve: {path}:2: rules[0].wehn: unknown key (did you mean 'when'?)\n")

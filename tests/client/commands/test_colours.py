"""Errors and verdicts have colours on a terminal, and nowhere else."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from terminals import drawn, terminal

RED, GREEN = "\x1b[31m", "\x1b[32m"
CODE = "from llmirage_client.cli import main; main(prog_name='llmirage')"
REFUSED = {
    "an unknown option": ("run", "--conurrency", "1"),
    "a value": ("simulate", "--requests", "0"),
    "a file": ("report", "nowhere"),
}


def said(words: tuple[str, ...], folder: Path, **environment: str) -> str:
    """On a terminal of 100 columns."""
    known: Mapping[str, str] = {"TERM": "xterm-256color", **environment}
    with terminal(100) as (stream, leader):
        everything = {**{k: v for k, v in os.environ.items() if k != "NO_COLOR"}, **known}
        command = [sys.executable, "-c", CODE, *words]
        # What is written must fit into what a terminal keeps, as nobody reads it before the end.
        subprocess.run(command, stdout=stream, stderr=stream, env=everything, cwd=folder, check=False, timeout=60)
        return drawn(leader)


@pytest.mark.parametrize("words", REFUSED.values(), ids=REFUSED)
def test_errors_are_red_on_a_terminal_that_has_colours(words: tuple[str, ...], tmp_path: Path) -> None:
    assert RED in said(words, tmp_path)
    plain = said(words, tmp_path, NO_COLOR="1")
    assert "\x1b" not in plain
    assert plain.strip()
    assert said(words, tmp_path, TERM="dumb") == plain
    piped = subprocess.run([sys.executable, "-c", CODE, *words], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert "\x1b" not in piped.stderr
    assert piped.stderr.splitlines()[-1].split()[0] == plain.splitlines()[-1].split()[0]
    assert piped.returncode == 2


def test_verdicts_are_green_and_red(tmp_path: Path) -> None:
    load = ("simulate", "--isl", "100", "--osl", "10", "--requests", "5", "--artifact-dir", "a", "--overwrite", "--slo")
    text = said((*load, "ttft_p99<10s,tpot_p99<0.001ms"), tmp_path)
    lines = [line for line in text.splitlines() if "p99<" in line]
    assert [GREEN in lines[0], RED in lines[1]] == [True, True]
    assert "\x1b[1;31mSLO missed" in text
    assert "\x1b[1;32mSLO met" in said((*load, "ttft_p99<10s"), tmp_path)

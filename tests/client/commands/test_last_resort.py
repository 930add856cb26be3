"""Commands that are stopped, or whose output goes nowhere: sentences and exit statuses, no tracebacks."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from terminals import drawn, terminal
from warm import llmirage

SHORT = ["simulate", "--isl", "100", "--osl", "10", "--model", "llama-3.1-8b", "--requests", "20"]
JSON = [*SHORT, "--json"]


def run(words: list[str], redirection: str, folder: Path) -> subprocess.CompletedProcess[str]:
    line = f"{shlex.join([*llmirage(), *words])} {redirection}"
    return subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60, cwd=folder)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
@pytest.mark.parametrize("words", [JSON, SHORT, ["catalog", "routers"]])
def test_output_to_a_full_disk_is_told(words: list[str], tmp_path: Path) -> None:
    ended = run(words, "> /dev/full", tmp_path)
    assert ended.returncode == 1
    assert ended.stderr == "llmirage: output: No space left on device\n"


@pytest.mark.parametrize("words", [JSON, SHORT])
def test_closed_streams_are_no_reason_to_fail(words: list[str], tmp_path: Path) -> None:
    ended = run(words, ">&-", tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_reader_that_leaves_early_is_no_error_worth_a_word(tmp_path: Path) -> None:
    ended = run(["catalog", "models"], "| head -n 1", tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_ctrl_c_while_something_is_prepared_ends_with_the_status_of_an_interrupt(tmp_path: Path) -> None:
    slow = "import click, time\nfrom llmirage_client.cli import main\n"
    slow += "@click.command()\ndef wait() -> None:\n    print('begun', flush=True)\n    time.sleep(60)\n"
    slow += "type(main).get_command = lambda self, ctx, name: wait\nmain(['check'])\n"
    with subprocess.Popen([sys.executable, "-c", slow], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "begun\n"
        time.sleep(0.1)
        child.send_signal(signal.SIGINT)
        assert child.wait(30) == 130
        assert child.stderr.read() == "\nInterrupted.\n"


RED, GREEN = "\x1b[31m", "\x1b[32m"
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
        command = [*llmirage(), *words]
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
    piped = subprocess.run([*llmirage(), *words], capture_output=True, text=True, cwd=tmp_path, check=False)
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

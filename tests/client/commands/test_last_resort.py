"""Commands that are stopped, or whose output goes nowhere: sentences and exit statuses, no tracebacks."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "llmirage_client"]
SHORT = [*COMMAND, "simulate", "--isl", "100", "--osl", "10", "--model", "llama-3.1-8b", "--requests", "20"]
JSON = [*SHORT, "--json"]


def run(words: list[str], redirection: str, folder: Path) -> subprocess.CompletedProcess[str]:
    line = f"{subprocess.list2cmdline(words)} {redirection}"
    return subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60, cwd=folder)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
@pytest.mark.parametrize("words", [JSON, SHORT, [*COMMAND, "catalog", "routers"]])
def test_output_to_a_full_disk_is_told(words: list[str], tmp_path: Path) -> None:
    ended = run(words, "> /dev/full", tmp_path)
    assert ended.returncode == 1
    assert ended.stderr == "llmirage: output: No space left on device\n"


@pytest.mark.parametrize("words", [JSON, SHORT])
def test_closed_streams_are_no_reason_to_fail(words: list[str], tmp_path: Path) -> None:
    ended = run(words, ">&-", tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_reader_that_leaves_early_is_no_error_worth_a_word(tmp_path: Path) -> None:
    ended = run([*COMMAND, "catalog", "models"], "| head -n 1", tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_ctrl_c_while_something_is_prepared_ends_with_the_status_of_an_interrupt(tmp_path: Path) -> None:
    slow = "import click, time\nfrom llmirage_client.cli import main\n"
    slow += "@click.command()\ndef wait() -> None:\n    print('begun', flush=True)\n    time.sleep(60)\n"
    slow += "type(main).get_command = lambda self, ctx, name: wait\nmain(['check'])\n"
    with subprocess.Popen([sys.executable, "-c", slow], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline() == "begun\n"
        time.sleep(0.1)
        child.send_signal(signal.SIGINT)
        assert child.wait(30) == 130
        assert child.stderr.read() == "\nInterrupted.\n"

"""Commands typed in this process: their exit status is checked, and no traceback is printed."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from llmirage_client.cli import main


def invoke(*words: object, status: int = 0) -> Result:
    """Run `llmirage WORDS`, which must end with this status."""
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    assert "Traceback" not in result.output
    assert result.exit_code == status, result.output
    return result


def text_of(*words: object, status: int = 0) -> str:
    """Return what a command prints, errors too, in one line."""
    return " ".join(invoke(*words, status=status).output.split())


def refusal(*words: object) -> str:
    """Return in one line why a command refuses its input."""
    return text_of(*words, status=2)


def json_of(*words: object, status: int = 0) -> Any:
    """Return what a command prints with --json."""
    return json.loads(invoke(*words, "--json", status=status).stdout)


def interrupted(*words: object, when: Callable[[], bool], signals: Sequence[int] = (signal.SIGINT,)) -> tuple[int, str]:
    """Run a command in a new interpreter, which gets the signals in their order; return its status and output."""
    line = [sys.executable, "-m", "llmirage", *map(str, words)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        while not when() and process.poll() is None:
            time.sleep(0.01)
        for number in signals:
            process.send_signal(number)
        try:
            output, _ = process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()  # else the end of this block waits for it
            raise
    assert "Traceback" not in output
    return process.returncode, output


def summary_of(folder: Path) -> Any:
    """Return the summary of the run in a folder."""
    return json.loads((folder / "profile_export_aiperf.json").read_text())


def records_of(folder: Path) -> list[Any]:
    """Return the records of the run in a folder, one a request."""
    return [json.loads(line) for line in (folder / "profile_export.jsonl").read_text().splitlines()]

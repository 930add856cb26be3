"""JUnit XML of objectives, as CI systems show it: a test case for each."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

from llmirage_client.measure.record import RunResult
from llmirage_client.measure.slo import Verdict
from llmirage_client.report.atomic_files import write_text
from llmirage_client.report.secrets import hide_in_text


def suite_name(result: RunResult) -> str:
    """Return the name of the test suite: workload, model and URL."""
    return f"{result.workload_path} on {result.model or 'unnamed model'}" + (f" at {result.url}" if result.url else "")


def write_junit(place: str, name: str, verdicts: Sequence[tuple[str, Verdict]]) -> None:
    """Write the file. name: of the suite. verdicts: each with what stands before the objective. Raises OSError."""
    missed = sum(not verdict.met for _, verdict in verdicts)
    counts = f'tests="{len(verdicts)}" failures="{missed}" errors="0"'
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', f"<testsuites {counts}>"]
    lines.append(f'<testsuite name="{html.escape(hide_in_text(name))}" {counts}>')
    for before, verdict in verdicts:
        case = f'<testcase classname="llmirage.slo" name="{html.escape(before + verdict.objective.text)}"'
        measured = html.escape(verdict.measured)
        if verdict.met:
            lines.append(f"{case}><system-out>{measured}</system-out></testcase>")
        else:
            lines.append(
                f'{case}><failure type="missed" message="{measured}">{html.escape(str(verdict))}</failure></testcase>'
            )
    write_text(Path(place), "\n".join([*lines, "</testsuite>", "</testsuites>"]) + "\n")

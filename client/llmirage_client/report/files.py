"""The files of a run, in the layout and with the names that AIPerf's users and tools know, and objectives as JUnit XML."""

from __future__ import annotations

import html
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmirage_client.measure.columns import Columns, columns_of
from llmirage_client.measure.metrics import Metrics, Slice, compute, time_slices
from llmirage_client.measure.record import RunResult
from llmirage_client.measure.slo import Verdict
from llmirage_client.report.atomic_files import json_bytes, write_json, write_text, write_whole
from llmirage_client.report.evalscope_files import TIMELINE_JSON, evalscope_files
from llmirage_client.report.records_file import RECORDS_FILE, RecordWriter, RunClock, record_line, remove_earlier_run
from llmirage_client.report.secrets import hide_in_command, hide_in_text
from llmirage_client.report.summary_files import slices_csv, slices_json, summary_csv, summary_json

SLICES_JSON = "profile_export_aiperf_timeslices.json"
SLICES_CSV = "profile_export_aiperf_timeslices.csv"
SUMMARY_JSON = "profile_export_aiperf.json"
SUMMARY_CSV = "profile_export_aiperf.csv"
INPUTS_JSON = "inputs.json"


def write_artifacts(
    result: RunResult,
    directory: Path | str,
    *,
    metrics: Metrics | None = None,
    records: RecordWriter | None = None,
    command: Sequence[str] | None = None,
    each_request: bool = True,
) -> list[Path]:
    """Write every file of the run into `directory`, made if need be, and return their paths.

    metrics: those of this result, if they are computed already. records: the writer that followed the run; it is closed
    here and its file kept when it wrote every record, else the file is written anew. command: the words of the command line
    that made the run (default: this process's), kept in the summary without its secrets. each_request: False leaves out the
    files that grow with the number of requests: records, timeline and inputs.
    A file appears whole or not at all. Raises OSError when that fails.
    """
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    if records is None:
        remove_earlier_run(folder)
        (folder / RECORDS_FILE).unlink(missing_ok=True)
    measured = compute(result) if metrics is None else metrics
    words = ["llmirage", *sys.argv[1:]] if command is None else command
    benchmark_id = str(uuid.uuid4()) if records is None else records.benchmark_id
    columns = columns_of(result.records)
    others = evalscope_files(columns, result.speed, result.options, result.workload_format)
    slices = _slices(result, columns)
    summary = summary_json(result, measured, hide_in_command(words), benchmark_id)

    paths = [folder / SUMMARY_JSON, folder / SUMMARY_CSV]
    if each_request:
        paths.append(folder / RECORDS_FILE)
        _finish_records(result, paths[2], records)  # first: all else can be computed from them
    else:
        others.pop(TIMELINE_JSON, None)
    write_json(paths[0], summary)
    write_text(paths[1], summary_csv(measured))
    for name, content in others.items():
        paths.append(folder / name)
        write_json(paths[-1], content, indent=None if name == TIMELINE_JSON else 2)
    if slices:
        paths += [folder / SLICES_JSON, folder / SLICES_CSV]
        write_json(paths[-2], slices_json(slices, summary["input_config"]), indent=None)
        write_text(paths[-1], slices_csv(slices))
    if result.inputs and each_request:
        paths.append(folder / INPUTS_JSON)
        write_whole(paths[-1], lambda file: file.writelines(_inputs(result.inputs)))
    return paths


def _slices(result: RunResult, columns: Columns) -> list[Slice]:
    slice_s = result.options.get("slice_duration")
    if not isinstance(slice_s, (int, float)):
        return []
    try:
        return time_slices(columns, slice_s, result.speed)
    except ValueError as error:  # nothing to lose a run for
        result.notes.append(f"--slice-duration: {error}; they are not written.")
        return []


def _finish_records(result: RunResult, path: Path, writer: RecordWriter | None) -> None:
    if writer is not None:
        writer.close()
        if writer.problem is None and writer.path == path:
            return
        if isinstance(writer.problem, FileNotFoundError):
            result.notes.append(f"{writer.path} was removed during the run; it is written anew.")
    clock = RunClock(result.start_s, result.start_unix_s, result.speed)
    write_whole(path, lambda file: file.writelines(record_line(r, clock) for r in result.records))


def _inputs(inputs: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    """Yield the content of inputs.json, a line a body, because together the bodies may not fit in memory."""
    yield b'{"data":['
    for number, session in enumerate(inputs):
        yield b",\n" if number else b"\n"
        yield b'{"session_id":' + json_bytes(session["session_id"]) + b',"payloads":['
        for place, payload in enumerate(session["payloads"]):
            yield b",\n" if place else b"\n"
            yield json_bytes(payload)
        yield b"]}"
    yield b"\n]}\n"


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

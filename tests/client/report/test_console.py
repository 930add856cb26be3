"""The report on the screen: the figures a reader looks for, and what it says when there is reason to doubt them."""

import io
import os
import pty
import re
import select
import subprocess
import sys
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Any

import pytest
from made_runs import record
from made_runs import run as run_of

from llmirage_client.measure.record import BranchStats, Record, RequestError, RunResult
from llmirage_client.report.console import render
from llmirage_client.report.files import write_artifacts
from llmirage_client.report.screen import duration, number


def request(number: int = 0, *, streamed: bool = True, depth: int = 0, turn: int = 0, **changes: Any) -> Record:
    """A request of 1,000 tokens that gets three after 0.5, 0.75 and 1 s, or all of them after 1 s."""
    timed = {"ttft_s": 0.5, "tpot_s": 0.25, "tokens": 3, "prompt": 1000, "cached": 250 * (1 + depth), "depth": depth}
    one = record("x", turn, 100.0 + number, **timed)  # type: ignore[arg-type]
    if not streamed:
        one.exchange.streamed, one.exchange.token_s = False, one.exchange.token_s[-1:]
    return replace(one, **changes)


def failure(number: int = 0, code: int | None = 500, message: str = "forced failure") -> Record:
    return record("x", start_s=100.0 + number, ttft_s=1.0, error=RequestError(code, "server_error", message))


run = partial(run_of, start_s=99.0, end_s=109.0)


def report(result: RunResult, width: int = 100, **options: Any) -> str:
    stream = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(width))
        render(result, stream=stream, **options)
    return stream.getvalue()


def cells(text: str, start: str) -> list[str]:
    """The cells of the one line that starts so."""
    (line,) = [line for line in text.splitlines() if line.startswith(start)]
    return line[len(start) :].split()


def test_the_heading_says_what_was_run() -> None:
    text = report(run([request(0), request(1), failure(2)]))
    assert "a-model at http://localhost:8000/v1" in text
    assert "workload bundled:some (dag_jsonl), endpoint chat, streamed, concurrency 4\n" in text
    assert "2 requests ok, 1 failed in 3.0 s\n" in text


def test_the_latencies_are_in_milliseconds() -> None:
    text = report(run([request(0), request(1)]))
    assert cells(text, "First token (TTFT)") == ["500.0"] * 6 + ["2"]
    assert cells(text, "Per output token (TPOT)") == ["250.0"] * 6 + ["2"]
    assert cells(text, "Between chunks (ITL)") == ["250.0"] * 6 + ["4", "gaps"]
    assert cells(text, "Request latency") == ["1,000.0"] * 6 + ["2"]


def test_throughput_tokens_and_the_cached_share() -> None:
    text = report(run([request(0), request(1)]))
    assert cells(text, "Successful requests") == ["1.00/s"]  # two in the two seconds from 100 to 102
    assert cells(text, "Output tokens per user, mean") == ["4.00/s"]
    assert cells(text, "Input tokens per request, counted by the server") == ["1,000"]
    assert cells(text, "Prefix cache hit rate (input tokens)") == ["25.0", "%"]


def test_depths_have_their_own_rows_when_the_run_branches() -> None:
    text = report(run([request(0), request(1, depth=1), request(2, depth=1)], branch_stats=BranchStats(children_spawned=2)))
    table = text[text.index("By agent depth") : text.index("Branches")]
    assert cells(table, "0 ")[:2] == ["1", "0"]
    assert cells(table, "1 ")[:2] == ["2", "0"]
    assert cells(table, "1 ")[-2:] == ["50.0", "%"]
    assert cells(text, "children_spawned")[0] == "2"
    assert "joins_suppressed" in text


@pytest.mark.parametrize("stats", [None, BranchStats()])
def test_a_run_without_branches_has_no_branch_tables(stats: BranchStats | None) -> None:
    text = report(run([request(0)], branch_stats=stats))
    assert "agent depth" not in text
    assert "branch_stats" not in text
    assert "By turn" not in text


def test_turns_have_their_own_rows_when_there_are_several() -> None:
    assert "By turn" in report(run([request(0), request(1, turn=1)]))


def test_times_of_a_faster_cluster_are_named_as_such() -> None:
    text = report(run([request(0), request(1)], speed=10.0), width=200)
    assert "in 20.0 s of cluster time (2.0 s real time at speed 10; all times below are cluster time)" in text
    assert cells(text, "First token (TTFT)")[0] == "5,000.0"


def test_replies_in_one_piece_have_a_latency_and_a_word_on_the_rest() -> None:
    text = report(run([request(0, streamed=False)], streaming=False))
    assert "not streamed" in text
    assert "First token (TTFT)" not in text
    assert cells(text, "Request latency")[0] == "1,000.0"
    assert "TTFT, TPOT and ITL need --streaming" in text


def test_errors_are_grouped_with_their_words_and_counts() -> None:
    text = report(run([request(0), failure(1), failure(2), failure(3, None, "connection refused")]))
    assert "\n2 failed (500, server_error): forced failure\n" in text.partition("Latency")[0]
    assert "\n1 failed (server_error): connection refused\n" in text.partition("Latency")[0]


def test_an_endpoints_words_cannot_draw_on_the_terminal() -> None:
    text = report(run([failure(0, 500, "\x1b[31mred\x07\n[bold]x[/bold] :smile:")]))
    assert "[31mred [bold]x[/bold] :smile:" in text
    assert "\x1b" not in text
    assert "\x07" not in text


def test_many_kinds_of_errors_are_cut_short_with_their_number() -> None:
    text = report(run([failure(i, 500, f"request {i:02d} failed") for i in range(15)]))
    assert text.count("server_error") == 10
    assert "\n5 failed with 5 more kinds of errors\n" in text


def test_a_run_where_everything_failed_says_so() -> None:
    text = report(run([failure(0), failure(1)]))
    assert "0 requests ok, 2 failed" in text
    assert "No request succeeded: there are no metrics." in text
    assert "Latency" not in text


def test_a_table_without_a_row_is_not_drawn() -> None:
    failures = [failure(0), failure(1)]
    failures[1].turn_index = 1
    text = report(run(failures))
    assert "By turn" in text
    assert "By conversation" not in text


def test_a_run_without_any_request_says_so() -> None:
    assert "0 requests ok, 0 failed in 10.0 s" in report(run([]))


def test_a_run_that_was_stopped_says_why() -> None:
    text = report(run([request(0), request(1, cancelled=True)], cancelled=True, cancel_reason="Ctrl-C"))
    assert "1 request ok, 0 failed, 1 cancelled" in text
    assert "The run was interrupted: Ctrl-C. The metrics cover the requests that finished." in text


def test_requests_that_went_out_again_are_told() -> None:
    records = [request(number) for number in range(3)]
    records[0].exchange.retries, records[2].exchange.retries = 1, 3
    note = "Note: 2 requests retried, 4 times in all; times count from the first attempt."
    assert note in report(run(records), width=200)
    assert "retried" not in report(run(records[1:2]))


def test_notes_and_files_are_repeated() -> None:
    result = run([request(0), request(1, phase="warmup")], notes=["Two roots share one session."])
    text = report(result, width=200, files=[])
    assert "Note: Two roots share one session.\n" in text
    assert "Note: 1 warm-up request not counted.\n" in text


def test_the_files_are_named_with_their_folder(tmp_path: Any) -> None:
    result = run([request(0)])
    files = write_artifacts(result, tmp_path)
    text = report(result, width=1000, files=files)
    assert f"Written to {tmp_path}: profile_export_aiperf.json, profile_export_aiperf.csv, profile_export.jsonl" in text
    assert f"HTML report: llmirage report {tmp_path} --open\n" in text
    narrow = report(result, width=40, files=files)
    assert f"\nHTML report: llmirage report {tmp_path} --open\n" in narrow  # to be copied in one piece
    without = report(result, width=1000, files=[file for file in files if file.suffix != ".jsonl"])
    assert without.endswith("HTML report: the same command with --open, or with --set records=true for `llmirage report`\n")


def test_chunks_that_came_together_are_said_to_blur_the_itl() -> None:
    together = request(0)
    together.exchange.token_s = [100.5, 100.5, 100.5, 101.0]
    said = "arrived together with the previous chunk"
    assert said in report(run([together]), width=400)
    assert said not in report(run([request(0)]), width=400)


class TestTheClientsOwnHealth:
    def test_a_client_that_kept_up_is_not_mentioned(self) -> None:
        text = report(run([request(0)], client_lag_s=(0.001,) * 100, client_cpu_s=2.0))
        assert "client" not in text

    def test_a_late_client_says_by_how_much(self) -> None:
        text = report(run([request(0)], client_lag_s=(0.08,) * 100), width=400)
        assert "This client was late: 5 % of its timers fired 80 ms or more after they were due" in text

    def test_lateness_counts_in_cluster_time(self) -> None:
        assert "itself late" not in report(run([request(0)], client_lag_s=(0.04,) * 100))
        late = report(run([request(0)], client_lag_s=(0.04,) * 100, speed=10.0), width=400)
        assert "itself late" not in late  # 400 ms of a latency of 10 s: within 5 %
        assert "fired 600 ms or more" in report(run([request(0)], client_lag_s=(0.06,) * 100, speed=10.0), width=400)

    def test_a_busy_client_says_so(self) -> None:
        text = report(run([request(0)], client_cpu_s=9.5), width=400)
        assert "This client used 95 % of a CPU core" in text


@pytest.mark.parametrize("width", [20, 60, 80, 100, 250])
def test_no_line_is_wider_than_asked(width: int) -> None:
    stats = BranchStats(children_spawned=1)
    result = run([request(i, depth=i % 3, turn=i) for i in range(6)] + [failure(9)], branch_stats=stats)
    for line in report(result, width).splitlines():
        assert len(line) <= width


@pytest.mark.parametrize("width", [80, 100])
def test_figures_are_not_broken_over_lines(width: int) -> None:
    text = report(run([request(i, depth=i % 2, turn=i) for i in range(4)], speed=100.0), width)
    assert cells(text, "First token (TTFT)")[0] == "50,000"
    assert cells(text, "depth")[-1] == "cached"


def test_away_from_a_terminal_the_report_is_plain_ascii() -> None:
    text = report(run([request(0), failure(1)], branch_stats=BranchStats(children_spawned=1)))
    assert text.isascii()
    assert "\x1b" not in text


def test_a_terminal_gets_bold_titles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as stream:
        render(run([request(0)]), stream=stream)
        written = b""
        while select.select([leader], [], [], 0.2)[0]:  # a terminal hands it over in pieces
            written += os.read(leader, 100_000)
    os.close(leader)
    text = written.decode()
    assert "\x1b[1mLatency in ms\x1b[0m" in text


def test_the_table_library_is_not_loaded_before_a_report_is_drawn() -> None:
    modules = "console, files, progress, records_file"
    program = f"import sys; from llmirage_client.report import {modules}; sys.exit('rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_letters_that_the_stream_cannot_write_do_not_stop_the_report() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    render(run([failure(0, 500, "überlastet")]), stream=stream)
    stream.flush()
    assert b"?berlastet" in raw.getvalue()


def test_a_reader_that_went_away_does_not_stop_the_run() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    render(run([request(0)]), stream=Gone())


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0.00"), (1.234, "1.23"), (99.987, "99.99"), (123.456, "123.5"), (1234.5, "1,234.5"), (123456.7, "123,457")],
)
def test_figures_are_rounded_for_reading(value: float, shown: str) -> None:
    assert number(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(3.21, "3.2 s"), (150, "2 min 30 s"), (179.7, "3 min 0 s"), (7260, "2 h 1 min")]
)
def test_durations_are_said_in_the_units_people_use(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def rows(text: str, title: str) -> dict[str, list[str]]:
    """The rows of a table by their first cell; cells lie two blanks or more apart."""
    lines = text[text.index(title) :].splitlines()[1:]
    table = list(takewhile(lambda line: line.strip(), lines))
    cells = [re.split(r"\s{2,}", line.strip()) for line in table if not line.startswith("--")]
    return {row[0]: row[1:] for row in cells}


def test_conversations_have_a_table_when_they_have_turns() -> None:
    text = report(run([request(0), request(2, turn=1)]), width=200)
    table = rows(text, "By conversation")
    assert table["Conversation latency, s"] == ["3.00", "3.00", "3.00", "3.00", "3.00", "1"]
    assert table["First token of the last answer, s"][0] == "2.50"
    assert table["Decode throughput, tokens/s"][0] == "4.00"
    assert table["Prefix cache hit rate, %"][0] == "25.00"
    assert table["- of eligible tokens, %"][0] == "24.93"  # 250 of 1,003
    assert rows(text, "Latency in ms")["- of later turns"][0] == "500.0"
    assert "By conversation" not in report(run([request(0)]))


def test_forks_and_spawns_have_rows_of_their_own() -> None:
    child = {"depth": 1, "parent_correlation_id": "x", "correlation_id": "y"}
    text = report(
        run([request(0), request(1, branch_mode="fork", **child), request(2, branch_mode="fork", **child)]), width=200
    )
    table = rows(text, "By branch")
    assert [table["root"][0], table["fork"][0]] == ["1", "2"]
    assert "By branch (" not in report(run([request(0), request(1, branch_mode="spawn", **child)]), width=200)


def test_token_rates_over_the_run_are_shown_when_it_was_long_enough() -> None:
    text = report(run([request(n) for n in range(0, 100, 10)]), width=200)
    table = rows(text, "Tokens per second over the run")
    assert list(table) == ["overall", "Input tokens/s", "- computed", "- cached", "Output tokens/s"]
    assert table["Input tokens/s"][0] == "109.9"  # 10,000 in 91 s
    assert table["- cached"][0] == "27.47"
    assert "Tokens per second over the run" not in report(run([request(0), request(1)]), width=200)


def test_goodput_is_shown_where_it_was_asked_for() -> None:
    text = report(run([request(0), request(1)], options={"goodput": "ttft:600"}), width=200)
    assert rows(text, "Throughput and tokens")["Goodput (requests that met every limit)"] == ["1.00/s"]


def test_latency_from_the_due_time_is_shown_where_it_is_another() -> None:
    late = request(0, issued_s=99.0)
    assert rows(report(run([late]), width=200), "Latency in ms")["- from its due time"][0] == "2,000.0"
    assert "- from its due time" not in report(run([request(0)]), width=200)

"""`simulate --steady-state`: requests are measured after the cluster has filled up and while the load is on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from llmirage_client.cli import main

LOAD = ["--isl", "500", "--osl", "50", "--requests", "300", "--model", "llama-3.1-8b", "--weights", "bf16"]
SESSIONS = [*LOAD, "--turns", "10", "--think-time", "30", "--request-rate", "2"]


def summary(*words: str) -> dict[str, Any]:
    outcome = CliRunner().invoke(main, ["simulate", *words, "--json"])
    assert outcome.exit_code == 0, outcome.output
    found: dict[str, Any] = json.loads(outcome.stdout)
    return found


def test_sessions_deliver_the_rate_once_as_many_end_as_begin() -> None:
    whole, steady = summary(*SESSIONS), summary(*SESSIONS, "--steady-state")
    assert (whole["steady_state"], steady["steady_state"]) == (False, True)
    assert whole["requests"] == steady["requests"] == 300
    assert whole["delivered_per_s"] < 1.5
    assert steady["delivered_per_s"] == pytest.approx(2.0, rel=steady["shortfall_allowed"])
    assert steady["offered_per_s"] == pytest.approx(2.0)
    assert steady["cached_token_share"] > 0.75


def test_users_have_all_begun_before_any_request_counts() -> None:
    closed = [*LOAD[:1], "2000", *LOAD[2:], "--concurrency", "32"]
    at_once, steady = summary(*closed), summary(*closed, "--steady-state")
    assert steady["requests"] == 300
    assert steady["ttft_ms"]["p99"] < 0.5 * at_once["ttft_ms"]["p99"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([], "All requests count, from the first on an empty cluster to the last"),
        (["--steady-state"], "Measured in the steady state"),
    ],
)
def test_which_requests_count_is_said(more: list[str], said: str, tmp_path: Any) -> None:
    outcome = CliRunner().invoke(
        main, ["simulate", *LOAD, "--request-rate", "5", *more, "--artifact-dir", str(tmp_path / "o")]
    )
    assert outcome.exit_code == 0, outcome.output
    assert said in " ".join(outcome.stdout.split())
    assert "interrupted" not in outcome.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            [*LOAD, "--request-rate", "5", "--num-conversations", "5"],
            "starts and ends the load itself: leave out --num-conversations",
        ),
        ([*LOAD, "--request-rate", "5", "--via", "api"], "--steady-state needs --via engine"),
        (["bundled:coding-agent-team"], "--steady-state: a steady state needs one request rate or a number of users"),
    ],
)
def test_what_has_no_steady_state_is_refused(words: list[str], said: str) -> None:
    outcome = CliRunner().invoke(main, ["simulate", *words, "--steady-state"])
    assert outcome.exit_code == 2
    assert said in " ".join(outcome.output.split())

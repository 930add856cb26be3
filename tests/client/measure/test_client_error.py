"""How far a client's times are off: figures of stamps and records, and of a run against a server that writes them."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from made_runs import record

import llmirage
from llmirage_client.commands.finished_runs import verify_client
from llmirage_client.measure.client_error import Error, client_error, read_stamps
from llmirage_shared.settings import InputRefused


def test_errors_are_what_was_measured_less_what_was_sent() -> None:
    late = record(start_s=5.0, ttft_s=0.1, tpot_s=0.01, tokens=5)
    late.request_id = "a"
    stamps = {"a": [(95.0, 1), (103.0, 2), (111.0, 3), (119.0, 4), (127.0, 5)], "other": [(1.0, 1)]}
    found = client_error([late, record(start_s=6.0)], stamps)
    assert (found.requests, found.compared) == (2, 1)
    assert found.ttft == Error(1, pytest.approx(5.0), pytest.approx(5.0))
    assert found.itl == Error(1, pytest.approx(2.0), pytest.approx(2.0))
    assert found.gap == Error(4, pytest.approx(2.0), pytest.approx(2.0))
    fewer = client_error([late], {"a": [(95.0, 1), (127.0, 5)]})
    assert (fewer.gap, fewer.itl) == (None, found.itl)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "line 1: is no line"),
        ('{"request_id":"a"}', "line 1"),
        ('{"request_id":"a","sent":[[1]]}', "line 1"),
        (None, "No"),
    ],
)
def test_bad_stamps_are_refused_with_their_line(text: str | None, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "stamps"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputRefused, match=re.escape(problem)):
        read_stamps(str(path))


def test_a_run_against_a_server_that_stamps(tmp_path: Path) -> None:
    stamps = str(tmp_path / "stamps.jsonl")
    with llmirage.Server(port=0, ttft=20, itl=5, set={"sent_stamps": stamps}) as server:
        llmirage.run(url=server.base_url, isl=50, osl=8, requests=6, artifact_dir=tmp_path / "run")
    result = CliRunner().invoke(verify_client, [str(tmp_path / "run"), stamps, "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert (found["requests"], found["compared"], found["gap"]["count"]) == (6, 6, 42)
    assert 0 < found["ttft"]["median"] < 500
    [first, *_] = read_stamps(stamps).values()
    assert [tokens for _, tokens in first] == list(range(1, 9))
    assert first[0][0] >= 20
    table = CliRunner().invoke(verify_client, [str(tmp_path / "run"), stamps])
    assert "6 of 6 streamed requests have stamps" in table.output
    (tmp_path / "empty").write_text("")
    assert CliRunner().invoke(verify_client, [str(tmp_path / "run"), str(tmp_path / "empty")]).exit_code == 2

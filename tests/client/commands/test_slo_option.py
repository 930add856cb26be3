"""`--slo` and `--junit` of run and simulate: the verdict on the screen, in files and as exit status."""

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from invoked import invoke, json_of, refusal, summary_of

SMALL = ("--isl", "1000", "--osl", "20", "--requests", "20", "--model", "llama-3.1-8b", "--gpu", "h100_sxm")


def test_a_single_objective_is_not_counted(tmp_path: Path) -> None:
    output = invoke("simulate", *SMALL, "--slo", "ttft_p99<5s", "--artifact-dir", tmp_path).output
    assert output.splitlines()[1] == "SLO met"


@pytest.mark.parametrize(("slo", "status"), [("ttft_p99<5s,error_rate<1%", 0), ("ttft_p99<5s,tpot_p50<1us", 3)])
def test_the_verdict_comes_first_and_is_the_exit_status(slo: str, status: int, tmp_path: Path) -> None:
    words = ("--slo", slo, "--artifact-dir", tmp_path, "--set", "records=true")
    output = invoke("simulate", *SMALL, *words, status=status).output
    first = output.splitlines()[1:4]
    assert first[0] == ("SLO missed: 1 of 2 objectives" if status else "SLO met: all 2 objectives")
    assert first[1].startswith("  ttft_p99<5s: ")
    assert first[1].endswith(", met")
    assert first[2].endswith(", missed" if status else ", met")
    summary = summary_of(tmp_path)["llmirage"]["slo"]
    assert [entry["met"] for entry in summary["objectives"]] == [True, not status]
    assert summary["met"] == (not status)
    invoke("report", tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert page.index('<div class="verdict ') == page.index(
        f'<div class="verdict {"bad" if status else "good"}"><p><strong>SLO'
    )


def test_json_has_the_verdict_and_its_figures() -> None:
    summary = json_of("simulate", *SMALL, "--slo", "latency_p50<1ms", status=3)
    (entry,) = summary["slo"]["objectives"]
    assert entry["value"] == pytest.approx(summary["latency_ms"]["p50"])
    assert entry | {"value": 0} == {
        "objective": "latency_p50<1ms", "metric": "request_latency", "statistic": "p50", "comparison": "<", "limit": 1.0,
        "unit": "ms", "value": 0, "met": False,
    }  # fmt: skip
    assert "slo" not in json_of("simulate", *SMALL)


def test_junit_has_a_case_for_each_objective(tmp_path: Path) -> None:
    file = tmp_path / "slo.xml"
    slo = "ttft_p99<5s,tpot_p50<1us,ttfat_p50<1s"
    invoke("simulate", *SMALL, "--osl", "1", "--slo", slo, "--json", "--junit", file, status=3)
    (suite,) = ET.parse(file).getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("3", "1")
    cases: dict[str | None, Any] = {case.get("name"): case.find("failure") for case in suite}
    assert list(cases) == slo.split(",")
    assert cases["ttft_p99<5s"] is None
    assert cases["tpot_p50<1us"].get("message") == "not measured"  # replies of one token have no TPOT


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--slo", "ttft<500ms"), "'ttft<500ms': ttft has many values in a run: choose a statistic"),
        (("--slo", "speed<1"), "there is no metric 'speed'"),
        (("--junit", "x.xml"), "--junit needs --slo"),
    ],
)
def test_objectives_that_say_nothing_are_refused(arguments: tuple[str, ...], words: str) -> None:
    assert words in refusal("simulate", *SMALL, *arguments)


def test_a_search_has_objectives_of_its_own() -> None:
    asked = ("run", "bundled:chat", "--find-max", "ttft_p99<1s", "--slo", "ttft_p99<1s")
    assert "--slo is for runs at a given load" in refusal(*asked)

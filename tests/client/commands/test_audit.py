"""`run --set audit=output_caching_test`: endpoints that keep replies, and that do not."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from invoked import invoke, refusal
from json_endpoint import ChatEndpoint, completion

import llmirage

AUDIT = ("--set", "audit=output_caching_test", "--model", "m", "--no-streaming")
SAMPLES = ("--isl", "30", "--osl", "5", "--num-conversations", "12", "--concurrency", "1")


class Endpoint(ChatEndpoint):
    """Takes 50 ms for a reply that it does not know. keeps: it knows those that it made. fails: prompts from then on."""

    def __init__(self, keeps: bool, fails: int = 1000) -> None:
        super().__init__(self._reply)
        self.keeps, self.fails = keeps, fails
        self.prompts: list[str] = []

    def _reply(self, body: Any) -> tuple[int, Any]:
        prompt = json.dumps(body["messages"])
        known = prompt in self.prompts
        self.prompts.append(prompt)
        if len(self.prompts) > self.fails:
            return 500, {"error": {"message": "no"}}
        if not (known and self.keeps):
            time.sleep(0.05)
        return 200, completion("a b c d e", 30, 5)


def audited(endpoint: Endpoint, folder: Path, *words: str, status: int = 0) -> Any:
    with endpoint.started():
        given = ("--url", endpoint.url, "--set", "preflight=false", "--artifact-dir", str(folder))
        return invoke("run", *SAMPLES, *AUDIT, *given, *words, status=status)


@pytest.mark.parametrize("keeps", [False, True])
def test_only_an_endpoint_that_keeps_replies_fails(keeps: bool, tmp_path: Path) -> None:
    endpoint = Endpoint(keeps)
    result = audited(endpoint, tmp_path, "--set", "audit_threshold=0.5", status=int(keeps))
    assert len(set(endpoint.prompts[:12])) == 12
    assert endpoint.prompts[12:] == [endpoint.prompts[0]] * 12
    folder = tmp_path / "audit"
    verdict = json.loads((folder / "audit_output_caching_test.json").read_text())
    assert list(verdict) == [
        "test", "passed", "ref_qps", "audit_qps", "threshold", "ref_completed", "ref_requested", "audit_completed",
        "audit_requested", "reason",
    ]  # fmt: skip
    assert verdict["passed"] is not keeps
    assert verdict["reason"] in result.output
    assert (folder / "verify_OUTPUT_CACHING_TEST.txt").read_text() == f"Performance check pass: {not keeps}\n"
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {"reference", "output_caching"}


def test_another_sample_can_be_repeated_and_failures_are_not_completed(tmp_path: Path) -> None:
    endpoint = Endpoint(keeps=False, fails=14)
    result = audited(endpoint, tmp_path, "--set", "audit_sample_index=5", "--json", status=1)
    assert set(endpoint.prompts[12:]) == {endpoint.prompts[5]}
    verdict = json.loads(result.stdout)
    assert (verdict["ref_completed"], verdict["audit_completed"]) == (12, 2)
    assert verdict["reason"] == "Phase incomplete: reference 12/12, audit 2/12 (threshold 10%)"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--request-rate", "5"), "a rate would hide a faster endpoint"),
        (("--duration", "5"), "both phases are of as many samples"),
        (("--concurrency", "1,2"), "is of one load"),
        (("--turns", "2"), "conversations of several requests"),
        (("--set", "audit_sample_index=12"), "has 12 samples, from 0 to 11"),
        (("--set", "audit_threshold=1"), "audit_threshold"),
    ],
)
def test_what_cannot_be_audited_is_refused_before_anything_runs(
    words: tuple[str, ...], problem: str, tmp_path: Path
) -> None:
    endpoint = Endpoint(keeps=False)
    assert problem in audited(endpoint, tmp_path / "new", *words, status=2).output
    assert not endpoint.prompts
    assert not (tmp_path / "new").exists()


def test_scenarios_have_no_audit_as_in_mlperf(tmp_path: Path) -> None:
    file = tmp_path / "few.jsonl"
    file.write_text('{"text_input": "Hello there"}\n{"text_input": "Hello again"}\n')
    given = ["--url", "localhost:1", *AUDIT]
    assert "3 distinct samples were asked for" in refusal("run", file, *given, "--num-conversations", "3")
    agents = invoke("run", file, *given, "--scenario", "mlperf-agentic", "--concurrency", "2", status=1)
    assert "--audit: the scenario has a load" in agents.output


def test_the_python_api_refuses_it() -> None:
    with pytest.raises(llmirage.ConfigError, match="only the command"):
        llmirage.run(url="localhost:1", isl=10, osl=2, set={"audit": "output_caching_test"})

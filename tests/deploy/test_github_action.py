"""The steps of the GitHub Action, run as a runner runs them: with its variables, in its order, one shell each."""

import json
import os
import re
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from pages import ROOT

ACTION = yaml.safe_load((ROOT / ".github/actions/llmirage/action.yml").read_text(encoding="utf-8"))
ASK = """
import os, urllib.request
body = b'{"model": "m", "messages": [{"role": "user", "content": "Hi"}]}'
head = {"content-type": "application/json"}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, head)
print(urllib.request.urlopen(request).read().decode())
"""


@dataclass
class Runner:
    folder: Path
    inputs: dict[str, str]
    failed: list[str] = field(default_factory=list)
    printed: str = ""

    def __post_init__(self) -> None:
        given = {name: about.get("default", "") for name, about in ACTION["inputs"].items()}
        assert self.inputs.keys() <= given.keys()
        self.inputs = given | self.inputs
        self.environment = dict(os.environ) | {"RUNNER_TEMP": str(self.folder), "GITHUB_ENV": str(self.folder / "env")}
        self.environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        (self.folder / "env").touch()

    def run(self) -> None:
        for step in ACTION["runs"]["steps"]:
            if "run" in step and self._wanted(step.get("if", "success()")):
                variables = {name: self._filled(text) for name, text in step.get("env", {}).items()}
                command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
                done = subprocess.run(
                    command, env=self.environment | variables, cwd=self.folder, capture_output=True, text=True, timeout=90
                )
                self.printed += done.stdout + done.stderr
                self.failed += [step["name"]] * bool(done.returncode)
                told = (self.folder / "env").read_text().splitlines()
                self.environment |= dict(line.split("=", 1) for line in told)

    def _wanted(self, condition: str) -> bool:
        if "always()" not in condition and self.failed:
            return False
        for name, equal, text in re.findall(r"inputs\.(\w+) (==|!=) '(.*?)'", condition):
            if (self.inputs[name] == text) != (equal == "=="):
                return False
        return True

    def _filled(self, text: str) -> str:
        return re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda found: self.inputs[found[1]], text)


@pytest.fixture
def port() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return str(taken.getsockname()[1])


def played(folder: Path, port: str, **inputs: Any) -> Runner:
    (folder / "ask.py").write_text(ASK)
    runner = Runner(folder, {"package": "none", "port": port, **inputs})
    runner.run()
    return runner


def test_a_server_is_started_asked_judged_and_stopped(tmp_path: Path, port: str) -> None:
    runner = played(tmp_path, port, serve="--speed max --served-model-name 'two words'", run="python ask.py")
    assert runner.failed == [], runner.printed
    assert '"object":"chat.completion"' in runner.printed
    kept = tmp_path / "llmirage"
    assert sorted(path.name for path in kept.iterdir()) == ["journal.json", "metrics.txt", "server.log", "verdict.txt"]
    [entry] = json.loads((kept / "journal.json").read_text())["entries"]
    assert entry["user"] == "Hi"
    assert "vllm:" in (kept / "metrics.txt").read_text()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(port))) != 0


def test_a_client_that_breaks_a_rule_fails_the_job_and_the_server_stops(tmp_path: Path, port: str) -> None:
    (tmp_path / "faults.yaml").write_text("faults: [{kind: status, status: 429, retry_after_s: 30, times: 1}]\n")
    runner = played(tmp_path, port, serve="--faults faults.yaml --speed max", run="python ask.py || python ask.py || true")
    assert runner.failed == ["Verdict"], runner.printed
    assert "retry_after" in (tmp_path / "llmirage/verdict.txt").read_text()
    assert not (tmp_path / "llmirage/pid").exists()


def test_a_server_that_does_not_start_says_why(tmp_path: Path, port: str) -> None:
    runner = played(tmp_path, port, serve="--gpu nothing", run="true")
    assert runner.failed == ["Start"]
    assert "::error::llmirage serve did not start" in runner.printed
    assert "nothing" in runner.printed


@pytest.mark.parametrize(("package", "installed"), [("", str(ROOT)), ("llmirage==1.0.0", "llmirage==1.0.0")])
def test_without_a_package_the_action_installs_its_own_version(package: str, installed: str, tmp_path: Path) -> None:
    (tmp_path / "python").write_text('#!/bin/sh\nprintf %s "$5"\n')  # -m pip install --quiet WHAT
    (tmp_path / "python").chmod(0o755)
    [step] = [each for each in ACTION["runs"]["steps"] if each["name"] == "Install"]
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PACKAGE": package}
    environment["GITHUB_ACTION_PATH"] = str(ROOT / ".github/actions/llmirage")
    done = subprocess.run(["bash", "-euc", step["run"]], env=environment, capture_output=True, text=True, check=True)
    assert os.path.normpath(done.stdout) == installed

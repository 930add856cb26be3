"""Numbers of any size, for any option of any command: a result, or a refusal in words."""

import itertools
import json
import subprocess
import threading
from pathlib import Path

import click
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from invoked import invoke, records_of
from warm import llmirage

from llmirage_client.cli import main
from llmirage_shared.command_line import SettingOption

NUMBERS = itertools.count()
LONGEST_S = 1.0
VALUES = ("0", "-1", "1", "2", "0.5", "1e-300", "5e-324", "1e-12", "1e9", "1e18", "1e299", "-1e308", "inf", "-inf", "nan")
VALUES = (*VALUES, "1000000000", "1" + "0" * 18, "1" + "0" * 400, "-" + "9" * 20)
LENGTHS = ["--isl", "40", "--osl", "3", "--requests", "4"]
COMMANDS: dict[str, list[list[str]]] = {
    "simulate": [[*LENGTHS, "--request-rate", "5"], [*LENGTHS, "--concurrency", "2", "--via", "api"], ["{workload}"]],
    "run": [["{workload}", "--url", "127.0.0.1:9", "--model", "m", "--set", "preflight=false"]],
    "size": [["{workload}", "--slo", "ttft_p99<500ms", "--request-rate", "2", "--model", "Qwen/Qwen3-8B"]],
    "sweep": [["{study}"]],
    "calibrate": [["{runs}/a"]],
    "compare": [["{runs}/a", "{runs}/b"]],
    "route-score": [["{runs}/a", "{stamps}", "--routers", "session"]],
    "step": [["--model", "Qwen/Qwen3-8B"]],
    "check": [["{workload}"]],
    "inspect": [["{workload}"]],
    "convert": [["{workload}", "--to", "agentic_jsonl", "--output", "{out}.jsonl"]],
    "generate": [["chat", "--output", "{out}.jsonl"]],
    "verdict": [["127.0.0.1:9"]],
    "serve": [["--port", "0"]],
}
NO_RUNS = ("record", "demo")  # each has a port, and a server that lasts


def numeric_options() -> dict[str, list[SettingOption]]:
    context = click.Context(main)
    found = {}
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        options = [param for param in command.params if isinstance(param, SettingOption)]
        if numbers := [option for option in options if {int, float} & set(option.about.kinds)]:
            found[name] = numbers
    return found


OPTIONS = numeric_options()


def words_of(option: SettingOption, value: str) -> list[str]:
    flag = next((flag for flag in option.opts if flag.startswith("--")), None)
    return ["--set", f"{option.name}={value}"] if flag is None else [f"{flag}={value}"]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Files for the commands to read."""
    folder = tmp_path_factory.mktemp("numbers")
    turns = [{"messages": [{"role": "user", "content": "some words"}], "max_tokens": 3}] * 2
    lines = [json.dumps({"session_id": f"s{number}", "turns": turns}) for number in range(3)]
    (folder / "workload.jsonl").write_text("\n".join(lines))
    (folder / "study.yaml").write_text("isl: 40\nosl: 3\nrequests: 4\nconcurrency: 2\n")
    for name in "ab":
        invoke("simulate", *LENGTHS, "--concurrency", "2", "--artifact-dir", folder / name)
    ids = [record["metadata"]["x_request_id"] for record in records_of(folder / "a")]
    stamps = [json.dumps({"request_id": each, "instance": 0, "sent": [[1.0, 1]]}) for each in ids]
    (folder / "stamps").write_text("\n".join(stamps))
    named = {"stamps": "stamps", "workload": "workload.jsonl", "study": "study.yaml", "runs": "", "out": "out"}
    return {key: str(folder / name) for key, name in named.items()}


def test_every_command_with_numbers_is_tried() -> None:
    assert OPTIONS.keys() - COMMANDS.keys() == set(NO_RUNS)


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    sized = sorted(name for name in COMMANDS for _ in range(1 + len(OPTIONS[name]) // 20))  # more often with more options
    name = draw(st.sampled_from(sized))
    chosen = draw(st.lists(st.sampled_from(OPTIONS[name]), min_size=1, max_size=2, unique=True))
    return [
        name,
        *draw(st.sampled_from(COMMANDS[name])),
        *[word for option in chosen for word in words_of(option, draw(st.sampled_from(VALUES)))],
    ]


@given(command_lines())
@example(["simulate", *LENGTHS, "--request-rate", "1e-12"])
@example(["simulate", *LENGTHS, "--request-rate", "1e-12", "--via", "api"])
@example(["simulate", *LENGTHS, "--ttft", "1e-308"])
@example(["simulate", *LENGTHS, "--itl", "1e-18", "--ttft", "1e-18"])
@example(["simulate", *LENGTHS, "--ttft", "1e18"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_number_ends_in_a_traceback(places: dict[str, str], words: list[str]) -> None:
    number = next(NUMBERS)
    words = [word.format(**places | {"out": places["out"] + str(number)}) for word in words]
    if words[0] in ("simulate", "run", "sweep"):
        words += ["--artifact-dir", str(Path(places["out"]).parent / f"r{number}")]
    command = [*llmirage(), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        taking_too_long = threading.Timer(LONGEST_S, process.kill)
        taking_too_long.start()
        said = ""
        if words[0] == "serve":
            said = process.stdout.readline()
            process.terminate()
        said += process.stdout.read()
        taking_too_long.cancel()
    assert "Traceback" not in said, (words, said)

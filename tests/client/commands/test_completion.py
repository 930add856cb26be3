"""Completion in shells: what is offered, and how soon."""

import resource
import subprocess
import sys

import pytest

from llmirage_client.cli import COMMANDS

CODE = "from llmirage_client.cli import main; main(prog_name='llmirage')"
MOST_CPU_S = 1.0  # of a busy machine; a third of it otherwise


def offered(*words: str) -> list[str]:
    """What bash gets for the last word."""
    environment = {"_LLMIRAGE_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(["llmirage", *words])}
    environment["COMP_CWORD"] = str(len(words))
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=True)
    return [line.partition(",")[2] if line.startswith("plain,") else line for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("simulate", "--gpu", "h2"), "h200_sxm"),
        (("serve", "--model", "Qwen/Qwen3-3"), "Qwen/Qwen3-32B"),
        (("serve", "--engine", "sg"), "sglang"),
        (("serve", "--router", "kv"), "kv_aware"),
        (("size", "--gpus", "h100_sxm,l4"), "h100_sxm,l40s"),
        (("step", "--gpu", "b2"), "b200_sxm"),
        (("run", "bundled:cod"), "bundled:coding-agent"),
        (("run", "coding"), "coding-agent"),
        (("generate", "of"), "office-agent"),
        (("serve", "--dialect", "v"), "vllm"),
        (("run", "--conc"), "--concurrency"),
        (("catalog", "gp"), "gpus"),
    ],
)
def test_names_are_offered(words: tuple[str, ...], expected: str) -> None:
    found = offered(*words)
    assert expected in found
    assert all(name.startswith(words[-1]) for name in found)


def test_files_are_offered_where_no_name_begins_so() -> None:
    assert offered("run", "./req") == ["file,./req"]
    assert offered("serve", "--script", "rep") == ["file,rep"]


def test_commands_are_offered_without_loading_them() -> None:
    assert offered("s") == [name for name in COMMANDS if name.startswith("s")]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(shell: str) -> None:
    environment = {"_LLMIRAGE_COMPLETE": f"{shell}_source", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=False)
    assert "_LLMIRAGE_COMPLETE" in done.stdout


def test_it_is_soon_there() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    offered("simulate", "--gpu", "")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime - before.ru_utime < MOST_CPU_S

"""--help of every command: short, with examples that work; --help-all: every option."""

import re
import resource
import subprocess
import sys

import pytest
from click.testing import CliRunner
from examples import command_of, commands
from invoked import invoke, refusal

from llmirage_client.cli import COMMANDS, main
from llmirage_shared.command_line import FEW, SettingOption

MOST_LINES = 80


def said(*words: str, width: int = 80) -> str:
    done = CliRunner().invoke(main, [*words], terminal_width=width, prog_name="llmirage")
    assert done.exit_code == 0, done.output
    return done.output


EVERY = list(commands())
LONG = [words for words in EVERY if sum(isinstance(p, SettingOption) for p in command_of(words).params) > FEW]


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_help_is_short_and_has_two_examples(words: tuple[str, ...]) -> None:
    text = said(*words, "--help")
    assert len(text.splitlines()) <= MOST_LINES
    examples = re.findall(rf"^  (llmirage {' '.join(words)}\b.*)$", text.partition("\nExamples:\n")[2], flags=re.MULTILINE)
    assert len(examples) == 2
    assert all(len(line) <= 110 for line in examples)


@pytest.mark.parametrize("words", LONG, ids=" ".join)
def test_the_long_tail_is_told_by_help_all_alone(words: tuple[str, ...]) -> None:
    brief, whole = said(*words, "--help"), said(*words, "--help-all")
    assert brief.splitlines()[-1].endswith(f"llmirage {' '.join(words)} --help-all")
    options = [param for param in command_of(words).params if isinstance(param, SettingOption)]
    listed = 0
    for option in options:
        name = (
            option.about.short
            if len(option.about.short) > 1
            else option.about.spelled or option.about.name.replace("_", "-")
        )
        flag = re.compile(rf"^  (-\w, )?--(\[no-\])?{name}(?![\w-])", flags=re.MULTILINE)
        assert bool(flag.search(whole)) is option.about.has_flag(words[-1]), option.name
        assert bool(flag.search(brief)) is option.about.is_usual(words[-1]), option.name
        listed += option.about.has_flag(words[-1])
    assert f"All {listed} options" in brief
    assert "--help-all" not in whole.splitlines()[-1]


@pytest.mark.parametrize("words", LONG, ids=" ".join)
def test_flags_are_for_what_people_type(words: tuple[str, ...]) -> None:
    flags = re.findall(r"^  (?:-\w, )?--", said(*words, "--help-all"), flags=re.MULTILINE)
    assert len(flags) <= (60 if words == ("simulate",) else 45)


@pytest.mark.parametrize("words", LONG, ids=" ".join)
def test_every_key_means_one_setting_of_a_command(words: tuple[str, ...]) -> None:
    keys = [key for param in command_of(words).params if isinstance(param, SettingOption) for key in param.about.keys]
    assert len(keys) == len(set(keys))


def test_long_are_the_commands_that_have_a_whole_cluster_or_load() -> None:
    assert [words[0] for words in LONG] == ["serve", "run", "simulate", "size", "calibrate", "route-score"]


def test_help_all_of_a_command_with_few_options_is_its_help() -> None:
    assert said("compare", "--help-all") == said("compare", "--help")


@pytest.mark.parametrize(
    ("command", "wrong", "right"),
    [("simulate", "--host-kv-gb", "--set host_kv_gib"), ("run", "--sla-param", "--sla-params")],
)
def test_an_unknown_option_is_compared_with_all_options(command: str, wrong: str, right: str) -> None:
    done = CliRunner().invoke(main, [command, wrong, "1"], prog_name="llmirage")
    assert done.exit_code == 2
    assert right in done.output
    assert right not in said(command, "--help")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("rnu",), "Error: there is no command 'rnu' (did you mean 'run'?)"),
        (("frobnicate",), "Error: there is no command 'frobnicate'"),
        (("run",), "Error: give a workload (a file, bundled:NAME or a preset), or --isl and --osl"),
        (("simulate", "--isl", "5"), "Error: give a workload (a file, bundled:NAME or a preset), or --isl and --osl"),
    ],
)
def test_the_message_names_what_is_wrong(words: tuple[str, ...], message: str) -> None:
    done = CliRunner().invoke(main, words, prog_name="llmirage")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.splitlines()[3].startswith(message)


def test_a_server_that_is_not_there() -> None:
    said = "llmirage verdict: localhost:1: nothing listens there; `llmirage serve` starts a server\n"
    assert invoke("verdict", "localhost:1", status=1).stderr == said


CODE = "from llmirage_client.cli import main; main(prog_name='llmirage')"
MOST_CPU_S = 1.0  # of a busy machine; a third of it otherwise


def completion(*words: str) -> dict[str, str]:
    typed = " ".join(["llmirage", *words])
    return {"_LLMIRAGE_COMPLETE": "bash_complete", "COMP_WORDS": typed, "COMP_CWORD": str(len(words))}


def offered(*words: str) -> list[str]:
    """What bash gets for the last word."""
    done = CliRunner().invoke(main, env=completion(*words), prog_name="llmirage")
    assert done.exit_code == 0
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
    done = CliRunner().invoke(main, env={"_LLMIRAGE_COMPLETE": f"{shell}_source"}, prog_name="llmirage")
    assert "_LLMIRAGE_COMPLETE" in done.stdout


def test_it_is_soon_there() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", CODE], env=completion("simulate", "--gpu", ""), capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime - before.ru_utime < MOST_CPU_S


@pytest.mark.parametrize("name", ["run", "simulate", "size", "step"])
def test_flags_of_other_tools_say_what_to_do_instead(name: str) -> None:
    command = command_of((name,))
    own = {flag for param in command.params for flag in (*param.opts, *param.secondary_opts)}
    told = {flag: text for flag, text in command.elsewhere.items() if flag != "*"}
    assert {flag for text in told.values() for flag in re.findall(r"--[\w-]+", text)} <= own
    assert not own & set(told)
    done = invoke(name, *(f"{flag}=5" for flag in told), status=2)
    lines = [line.removeprefix("Error: ") for line in done.output.splitlines() if "no option" in line]
    assert lines == [f"no option {flag}: {text}" for flag, text in told.items()]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["serve", "--tool-call-parser", "hermes"], '--engine-args "..."'),
        (["simulate", "--attention-backend=fa3"], '--engine-args "..."'),
        (["size", "--gpu-memory-utilisation", "0.8"], "'--gpu-memory-utilization'?"),
        (["serve", "--max-lora", "2"], "(did you mean --set max_loras=...?)"),
    ],
)
def test_a_flag_that_resembles_none_may_be_one_of_an_engine(words: list[str], said: str) -> None:
    found = refusal(*words)
    assert said in found
    assert ("--engine-args" in found) == ("--engine-args" in said)

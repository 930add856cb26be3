"""--help of every command: short, with examples that work; --help-all: every option."""

import re

import pytest
from click.testing import CliRunner
from examples import command_of, commands

from llmirage_client.cli import main
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
    assert [words[0] for words in LONG] == ["serve", "run", "simulate", "size", "calibrate"]


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

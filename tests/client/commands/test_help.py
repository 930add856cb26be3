"""--help of every command: short, with examples that work; --help-all: every option."""

from __future__ import annotations

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
    unseen = 0
    for option in options:
        flag = re.compile(rf"^  (-\w, )?{option.opts[option.opts[0][1] != '-']}\b", flags=re.MULTILINE)
        assert flag.search(whole), option.name
        unseen += not flag.search(brief)
        assert bool(flag.search(brief)) is (option.required or option.about.usual in (True, words[-1])), option.name
    assert unseen > len(options) / 2
    assert "--help-all" not in whole.splitlines()[-1]


def test_long_are_the_commands_that_have_a_whole_cluster_or_load() -> None:
    assert [words[0] for words in LONG] == ["serve", "run", "simulate", "size", "calibrate"]


def test_help_all_of_a_command_with_few_options_is_its_help() -> None:
    assert said("compare", "--help-all") == said("compare", "--help")


@pytest.mark.parametrize(
    ("command", "wrong", "right"), [("simulate", "--host-kv-gb", "--host-kv-gib"), ("run", "--sla-param", "--sla-params")]
)
def test_an_unknown_option_is_compared_with_all_options(command: str, wrong: str, right: str) -> None:
    done = CliRunner().invoke(main, [command, wrong, "1"], prog_name="llmirage")
    assert done.exit_code == 2
    assert right in done.output
    assert right not in said(command, "--help")

"""A setting reads its value the same way from the command line, a file and Python, and refuses it in the same words."""

import math
from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from click.testing import CliRunner, Result

from llmirage_shared.command_line import SetOption, SettingsCommand, argument, command, join_lists, options
from llmirage_shared.settings import ConfigError, again, instance_of, setting, settings_of, switch

LOAD, FILES = "Load", "Files"


def _pair(value: Any) -> tuple[str, str]:
    name, colon, text = value.partition(":")
    if not colon:
        raise ValueError(f"must be NAME:TEXT, not {value!r}")
    return name, text


@dataclass(frozen=True, kw_only=True)
class Phase:
    users: int | None = setting(
        None, LOAD, "Users at a time.", aliases=("parallel",), least=1, several=True, unset="1, unless a rate is given"
    )
    wait_s: float = setting(0.0, LOAD, "Wait in ms.", name="wait", metavar="MS", per=1000, least=0, infinite=True, unset="0")
    pattern: Literal["poisson", "gamma"] | None = setting(None, LOAD, "Gaps.", needs="{} needs {users}, which have them")


@dataclass(frozen=True, kw_only=True)
class Everything(Phase):
    place: str = setting(MISSING, FILES, "Where to.", short="o", spelled="output", metavar="FILE")
    share: float = setting(0.5, FILES, "A share.", least=0, most=1)
    header: tuple[tuple[str, str], ...] = setting(
        (), FILES, "A header.", metavar="NAME:TEXT", read=lambda values: tuple(map(_pair, values))
    )
    names: tuple[str, ...] = setting((), FILES, "Names.", metavar="NAME", hidden=("named",))
    quick: bool = switch(FILES, "Be quick.")
    stream: bool = setting(True, FILES, "Stream.")
    warm_users: int | None = again(Phase, "users", None, "Users before.", prefix="warm")
    warm_wait_s: float = again(Phase, "wait_s", math.inf, "Wait before.", prefix="warm", unset="for all")


SEEN: list[dict[str, Any]] = []


def seen(**given: Any) -> None:
    if given["share"] == 0.25:
        raise ConfigError(["a quarter is too little", "and so is this"])
    SEEN.append(given)


def made(**details: Any) -> SettingsCommand:
    params = [argument("file", required=False), *options(Everything)]
    return command("made", f"{__name__}:seen", params, "Do it.", **details)


def run(*words: str, **details: Any) -> Result:
    SEEN.clear()
    return CliRunner().invoke(made(**details), list(words), terminal_width=110)


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """This module is found by name, as a module that does a command's work is."""
    import sys

    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or type(sys)(__name__))
    monkeypatch.setattr(sys.modules[__name__], "seen", seen, raising=False)
    monkeypatch.setattr(sys.modules[__name__], "seen_long", seen_long, raising=False)


def given(*words: str, **details: Any) -> dict[str, Any]:
    result = run("-o", "x", *words, **details)
    assert result.exit_code == 0, result.output
    return SEEN[0]


def test_the_command_line_gives_typed_values_in_the_units_of_the_user() -> None:
    found = given("--wait", "250", "--users", "3", "--share", "1", "--header", "a:b", "--header", "c:d", "--named", "n")
    assert found["wait"] == 250.0
    assert found["users"] == (3,)
    assert found["share"] == 1.0
    assert found["header"] == (("a", "b"), ("c", "d"))
    assert found["names"] == ("n",)
    assert found["place"] == "x"


def test_what_is_not_given_is_none_where_the_help_says_what_happens_else_the_default() -> None:
    found = given()
    assert (found["users"], found["wait"], found["pattern"], found["warm_wait"]) == (None, None, None, None)
    assert (found["share"], found["quick"], found["stream"], found["header"]) == (0.5, False, True, ())


def test_fields_are_in_their_own_unit_and_have_their_default() -> None:
    whole = instance_of(Everything, given("--wait", "250", "--warm-wait", "50"), users=7)
    assert (whole.wait_s, whole.warm_wait_s, whole.users, whole.share) == (0.25, 0.05, 7, 0.5)
    assert instance_of(Everything, given()).warm_wait_s == math.inf


def test_a_switch_has_no_opposite_and_other_truths_have_one() -> None:
    assert given("--quick", "--no-stream")["quick"] is True
    assert not SEEN[0]["stream"]
    assert "No such option" in run("-o", "x", "--no-quick").output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--users", "two"], "Invalid value for '--users' / '--parallel': must be a whole number, not 'two'"),
        (["--users", "0"], "must be at least 1, not 0"),
        (["--users", "1,,2"], "has an empty number: '1,,2' (two commas?)"),
        (["--users", "1,0"], "must be at least 1, not 0"),
        (["--share", "1.5"], "must be at least 0 and at most 1, not 1.5"),
        (["--share", "nan"], "must be at least 0 and at most 1, not nan"),
        (["--share", "inf"], "must be at least 0 and at most 1, not inf"),
        (["--wait", "-1"], "must be at least 0, not -1"),
        (["--pattern", "gama"], "must be one of poisson, gamma; not 'gama' (did you mean 'gamma'?)"),
        (["--header", "x"], "must be NAME:TEXT, not 'x'"),
    ],
)
def test_a_bad_value_of_the_command_line_is_told(words: Sequence[str], said: str) -> None:
    result = run("-o", "x", *words)
    assert result.exit_code == 2
    assert said in result.output


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("users", "two", "must be a whole number, not 'two'"),
        ("users", True, "must be a whole number, not True"),
        ("users", 0, "must be at least 1, not 0"),
        ("share", 1.5, "must be at least 0 and at most 1, not 1.5"),
        ("users", 10**400, "must be at most 1e18; got 1e400"),
        ("wait", -1e301, "must be at least -1e18; got -1e+301"),
        ("wait", -math.inf, "must be at least 0, not -inf"),
        ("pattern", "gama", "must be one of poisson, gamma; not 'gama' (did you mean 'gamma'?)"),
        ("names", [1], "must be a name or a list of them, not [1]"),
        ("stream", "yes", "must be true or false, not 'yes'"),
    ],
)
def test_a_bad_value_of_a_file_is_told_in_the_same_words(name: str, value: Any, said: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011  # the whole text is compared below
        settings_of(Everything)[name].convert(value)
    assert str(error.value) == said


def test_values_of_a_file_become_the_type_of_the_setting() -> None:
    found = settings_of(Everything)
    assert type(found["share"].convert(1)) is float
    assert found["names"].convert("one") == ("one",)
    assert found["wait"].convert(math.inf) == math.inf
    assert found["users"].convert(None) is None


def test_all_bad_values_are_told_at_once() -> None:
    result = run("--users", "0", "--share", "x")
    assert result.exit_code == 2
    told = [line for line in result.output.splitlines() if "nvalid" in line or "issing" in line]
    assert len(told) == 3
    assert "--users" in told[0]
    assert "--share" in "".join(told)
    assert "Missing option '-o' / '--output'" in "".join(told)


def test_what_the_work_refuses_is_an_error_of_usage() -> None:
    result = run("-o", "x", "--share", "0.25")
    assert result.exit_code == 2
    assert "Error: a quarter is too little\nand so is this" in result.output


def test_the_help_has_headings_defaults_and_limits_and_no_hidden_names() -> None:
    text = run("--help").output
    flat = " ".join(text.split())
    assert text.index("Load:") < text.index("Files:") < text.index("Options:")
    assert "--users, --parallel N[,N...] Users at a time. [default: 1, unless a rate is given]" in flat
    assert "-o, --output FILE Where to. [required]" in flat
    assert "--share SHARE A share. [default: 0.5; 0 to 1]" in flat
    assert "--pattern [poisson|gamma]" in flat
    assert "--stream / --no-stream Stream. [default: on]" in flat
    assert "--quick Be quick. --" in flat
    assert "--warm-users N Users before. --" in flat
    assert "--named" not in flat


def test_unchecked_options_leave_the_limits_to_whoever_makes_the_configuration() -> None:
    one = command("made", f"{__name__}:seen", options(Everything, but=("place",), checked=False), "Do it.")
    SEEN.clear()
    assert CliRunner().invoke(one, ["--share", "7"]).exit_code == 0
    assert (SEEN[0]["share"], SEEN[0]["stream"], SEEN[0]["names"]) == (7.0, None, ())
    assert CliRunner().invoke(one, ["--pattern", "x"]).exit_code == 2


def test_lists_may_stand_between_spaces_where_a_flag_says_so() -> None:
    assert given("--parallel", "1", "2", "4", "file", lists=("--parallel",))["users"] == (1, 2, 4)
    assert SEEN[0]["file"] == "file"
    assert join_lists(["--n", "1,2", "3", "x", "4"], ["--n"]) == ["--n", "1,2,3", "x", "4"]
    assert join_lists(["--n", "1", "2"], []) == ["--n", "1", "2"]


NUMBERED = {f"filler_{i}": setting(0, FILES, "More.", flag=False) for i in range(20)}
FILLER = type("Filler", (), NUMBERED | {"__annotations__": dict.fromkeys(NUMBERED, "int"), "__module__": __name__})


@dataclass(frozen=True, kw_only=True)
class Long:
    users: int | None = setting(None, LOAD, "Users.", usual=True, least=1)
    rate: float | None = setting(None, LOAD, "Rate.", flag=True)
    there: int | None = setting(None, LOAD, "There.", flag="there")
    max_seqs: int | None = setting(None, LOAD, "Sequences.", flag=False, carried=True, hidden=("max_running",))
    host_gib: float = setting(0.0, FILES, "Host.", flag=False, hidden=("offload",), aliases=("host_gb",), least=0)
    names: tuple[str, ...] = setting((), FILES, "Names.", flag=False)
    stream: bool = setting(True, FILES, "Stream.", flag=False)
    several: tuple[int, ...] | None = setting(None, LOAD, "Several.", flag=False, several=True, least=1)
    goals: str | None = setting(None, LOAD, "Goals.", usual=True, joined=True)


def long(*words: str) -> Result:
    SEEN.clear()
    made = command("long", f"{__name__}:seen_long", [*options(Long), *options(FILLER)], "Do it.")
    return CliRunner().invoke(made, list(words), terminal_width=110)


def seen_long(**given: Any) -> None:
    SEEN.append(given)


def set_to(*words: str) -> dict[str, Any]:
    result = long(*words)
    assert result.exit_code == 0, result.output
    return SEEN[0]


def test_set_gives_any_setting_by_any_name() -> None:
    words = ["host-gb=2", "names=a", "names=b=c", "stream=off", "several=1,2", "users=3", "USERS = 4", "filler_3=7"]
    found = set_to(*(word for text in words for word in ("--set", text)))
    assert (found["host_gib"], found["names"], found["stream"]) == (2.0, ("a", "b=c"), False)
    assert (found["several"], found["users"], found["filler_3"], found["filler_4"]) == ((1, 2), 4, 7, 0)
    assert set_to("--goals", "a<1", "--goals", "b<2")["goals"] == "a<1,b<2"


def test_names_of_other_tools_stay_flags_that_no_help_shows() -> None:
    found = set_to("--max-seqs", "3", "--offload", "5")
    assert (found["max_seqs"], found["host_gib"]) == (3, 5.0)
    assert set_to("--max-running", "4")["max_seqs"] == 4
    text = long("--help-all").output
    assert "--rate" in text
    assert "--set KEY=VALUE" in text
    assert not any(flag in text for flag in ("--max-seqs", "--offload", "--host-gib", "--there", "--filler-3"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--host-gib", "3"], "--host-gib is now --set host_gib=3"),
        (["--host-gb=3"], "--host-gb is now --set host_gib=3"),
        (["--names", "a b"], "--names is now --set 'names=a b'"),
        (["--no-stream", "--host-gib"], "--no-stream is now --set stream=false\n--host-gib is now --set host_gib=..."),
        (["--there", "1"], "--there is now --set there=1"),
        (["--host-gbi", "3"], "(did you mean --set host_gib=...?)"),
        (["--set", "users"], "Invalid value for '--set': 'users' is not KEY=VALUE"),
        (["--set", "stream="], "Invalid value for '--set': 'stream=' is not KEY=VALUE"),
        (["--set", "user=1"], "there is no setting 'user' (did you mean 'users'?)"),
        (["--set", "users=0"], "Invalid value for '--set users': must be at least 1, not 0"),
        (["--set", "stream=perhaps"], "Invalid value for '--set stream': 'perhaps' is not a valid boolean"),
        (["--users", "1", "--set", "users=1"], "users is given twice: by --set and by a flag (--users)"),
        (["--users", "0"], "Invalid value for '--users': must be at least 1, not 0"),
    ],
)
def test_what_set_and_former_flags_cannot_mean_is_told(words: Sequence[str], said: str) -> None:
    result = long(*words)
    assert result.exit_code == 2
    assert said in result.output


def test_all_problems_of_set_are_told_at_once() -> None:
    output = long("--set", "x=1", "--set", "users=0", "--rate", "y").output
    assert all(said in output for said in ("no setting 'x'", "'--set users'", "'--rate'"))


def test_set_completes_keys_and_their_values() -> None:
    made = command("long", f"{__name__}:seen_long", [*options(Long), *options(Phase), *options(FILLER)], "Do it.")
    [option] = [param for param in made.params if isinstance(param, SetOption)]
    context = made.make_context("long", [], resilient_parsing=True)
    assert "max_running=" in [item.value for item in option.shell_complete(context, "max-r")]
    assert [item.value for item in option.shell_complete(context, "pattern=g")] == ["pattern=gamma"]


def test_a_file_has_the_same_names_and_the_command_line_wins(tmp_path: Path) -> None:
    path = tmp_path / "long.yaml"
    path.write_text("host-gb: 2\nnames: [a, b]\nstream: false\nseveral: [1, 2]\nusers: 3\nrate: 5\n")
    found = set_to("--config", str(path), "--users", "4", "--set", "rate=6")
    assert (found["host_gib"], found["names"], found["stream"], found["several"]) == (2.0, ("a", "b"), False, (1, 2))
    assert (found["users"], found["rate"], found["max_seqs"]) == (4, 6.0, None)


def test_all_that_is_wrong_with_a_file_is_told_with_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "long.yaml"
    path.write_text("user: 3\nusers: 0\nrate: x\nhost_gib:\nhost_gb: 1\nhost-gib: 2\n")
    result = long("--config", str(path))
    assert result.exit_code == 2
    for said in (
        ":1: there is no setting 'user' (did you mean 'users'?)",
        ":2: users: must be at least 1, not 0",
        ":3: rate: must be a number, not 'x'",
        ":4: host_gib: must have a value",
        ":6: host-gib: is given twice",
    ):
        assert f"{path}{said}" in result.output
    assert "cannot be read" in long("--config", str(tmp_path / "none.yaml")).output

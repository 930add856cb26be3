"""Environment variables stand for the options of `serve`."""

from typing import Any

import pytest
from click.testing import CliRunner, Result

from llmirage_server.commands.serve import serve
from llmirage_server.config.file import make_config
from llmirage_shared.command_line import SettingOption


def given(*arguments: str) -> dict[str, Any]:
    return serve.make_context("serve", list(arguments)).params


def refused(*arguments: str) -> Result:
    result = CliRunner().invoke(serve, list(arguments))
    assert result.exit_code == 2
    return result


def test_every_setting_has_a_variable_named_after_it() -> None:
    options = [param for param in serve.params if isinstance(param, SettingOption)]
    assert {param.envvar for param in options} >= {"LLMIRAGE_PORT", "LLMIRAGE_CLUSTER", "LLMIRAGE_TENSOR_PARALLEL_SIZE"}
    for param in options:
        assert str(param.envvar).removeprefix("LLMIRAGE_").lower() in param.about.keys


def test_a_variable_stands_for_its_option_and_the_command_line_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"PORT": "9000", "API_KEY": "one two", "EXACT_LENGTH": "1", "SPEED": "max", "ENABLE_PREFIX_CACHING": "off"}
    for name, text in variables.items():
        monkeypatch.setenv(f"LLMIRAGE_{name}", text)
    options = given()
    assert (options["port"], options["api_key"], options["exact_length"]) == (9000, ("one", "two"), True)
    assert (options["speed"], options["enable_prefix_caching"]) == (float("inf"), False)
    options = given("--port", "9001", "--enable-prefix-caching", "--api-key", "three")
    assert (options["port"], options["enable_prefix_caching"], options["api_key"]) == (9001, True, ("three",))
    monkeypatch.setenv("LLMIRAGE_PORT", "")
    assert given()["port"] == 8000


@pytest.mark.parametrize(
    ("variable", "text", "problem"),
    [
        ("LLMIRAGE_PORT", "tcp://10.0.0.1:8000", "must be a whole number"),
        ("LLMIRAGE_PORT", "70000", "must be at least 0 and at most 65,535"),
        ("LLMIRAGE_BLOCK_SIZE", "0", "must be at least 1"),
        ("LLMIRAGE_EXACT_LENGTH", "perhaps", "not a valid boolean"),
        ("LLMIRAGE_ACCEPT_MODELS", "all", "must be one of any, served"),
    ],
)
def test_a_bad_value_names_the_variable(variable: str, text: str, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, text)
    output = refused().output
    assert f"Invalid value for {variable}: " in output
    assert problem in output


def test_a_refused_cluster_tells_which_options_came_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMIRAGE_MODEL", "no-such-model")
    output = refused("--port", "0").output
    assert "no-such-model" in output
    assert "Options from the environment: LLMIRAGE_MODEL" in output


def test_a_variable_wins_over_the_cluster_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("instances: 3\nseed: 4\n")
    monkeypatch.setenv("LLMIRAGE_CLUSTER", str(file))
    monkeypatch.setenv("LLMIRAGE_INSTANCES", "5")
    options = given()
    config = make_config(options.pop("cluster_file"), {k: v for k, v in options.items() if k in ("instances", "seed")})
    assert (config.instances, config.seed) == (5, 4)


def test_a_misspelled_variable_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMIRAGE_PROT", "9000")
    runner = CliRunner()
    with runner.isolation() as streams:
        serve.make_context("serve", [])
    assert b"LLMIRAGE_PROT stands for no option (did you mean 'LLMIRAGE_PORT'?)" in streams[1].getvalue()


def test_the_help_tells_of_variables() -> None:
    assert "LLMIRAGE_PORT stands for --port" in " ".join(CliRunner().invoke(serve, ["--help"]).output.split())


def test_a_former_name_says_what_it_became(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    became = "replies end by themselves now; {} makes max_tokens exact"
    for flag in ("--natural-stop", "--no-natural-stop"):
        assert became.format("--exact-length") in refused(flag).output
    assert "exact" not in refused("--natrual").output
    file = tmp_path / "cluster.yaml"
    file.write_text("natural-stop: true\n")
    assert became.format("exact_length") in refused("--cluster", str(file)).output
    monkeypatch.setenv("LLMIRAGE_NATURAL_STOP", "1")
    assert became.format("LLMIRAGE_EXACT_LENGTH") in refused("--port", "-1").output

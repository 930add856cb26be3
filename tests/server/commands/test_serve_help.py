"""The help of `serve` and the page about cluster files: every setting is told, under its heading, with its other names."""

import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from llmirage_server.app import create_app
from llmirage_server.commands.serve import serve
from llmirage_server.config import ALIASES, SETTINGS, canonical_name
from llmirage_server.config.file import make_config, read_cluster_file

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "cluster-files.md").read_text(encoding="utf-8")
TABLES = (DOCS / "settings.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def help_text() -> str:
    return CliRunner().invoke(serve, ["--help-all"], terminal_width=110).output


def test_every_setting_stands_under_its_heading_with_its_default() -> None:
    parts = re.split(r"^(\S.*):$", help_text(), flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    for name, about in SETTINGS.items():
        section = re.sub(r"\s+", " ", re.sub(r"-\n\s+", "-", sections.get(about.group, "")))
        flag = about.short if len(about.short) > 1 else name.replace("_", "-")
        listed = re.search(rf"--(\[no-\])?{flag}(?![\w-])", section)
        assert bool(listed) is about.has_flag("serve")
        assert not listed or re.split(r"; |\. ", " ".join(about.help.split()))[0].rstrip(".") in section
    assert "None" not in help_text()


def test_headings_come_in_the_order_in_which_people_choose() -> None:
    headings = re.findall(r"^(\S.*):$", help_text(), flags=re.MULTILINE)
    assert headings == [
        "Examples",
        "Server",
        "Model and hardware",
        "Parallelism",
        "Engine",
        "KV cache",
        "Speculative decoding",
        "Time",
        "Cluster",
        "Replies and API",
        "Recordings",
        "Access",
        "Faults",
    ]


@pytest.mark.parametrize("alias", list(ALIASES))
def test_the_names_of_other_engines_are_flags_and_keys_too(alias: str, tmp_path: Path) -> None:
    name = ALIASES[alias]
    assert canonical_name(alias.replace("_", "-").upper()) == name
    kinds = SETTINGS[name].kinds
    numbers = float in kinds or SETTINGS[name].several
    value = "2" if int in kinds or (SETTINGS[name].least or 0) >= 1 else "0.5" if numbers else "vllm"
    choices = SETTINGS[name].choices
    if choices:
        value = choices[0]
    value = "sql=/adapters/sql" if name == "lora_modules" else value
    text = "true" if bool in kinds else value
    params = serve.make_context("serve", ["--set", f"{alias}={text}"]).params
    assert params[name] not in (None, ())
    if alias in SETTINGS[name].hidden:
        flag = f"--{alias.replace('_', '-')}"
        assert serve.make_context("serve", [flag] if bool in kinds else [flag, value]).params[name] == params[name]
    path = tmp_path / "cluster.yaml"
    model = "Qwen/Qwen3-8B"
    text = "true" if bool in kinds else model if name == "draft_model" else value
    path.write_text(f"{alias}: {text}\n", encoding="utf-8")
    assert read_cluster_file(str(path))[name] not in (None, ())


def test_the_pages_about_settings_and_cluster_files_have_every_setting_and_every_other_name() -> None:
    written = set(re.findall(r"`([a-z_]+)`", TABLES)) | set(re.findall(r"\b([a-z_]+):", "\n".join(EXAMPLES)))
    shown = {"num_instances", "tp_size", "pp_size", "dp_size", "ep_size"}  # speak for themselves
    assert set(SETTINGS) | set(ALIASES) <= written | shown


@pytest.mark.parametrize("example", EXAMPLES, ids=[example.split(":")[0].strip() for example in EXAMPLES])
def test_the_examples_of_the_page_make_clusters(example: str, tmp_path: Path) -> None:
    assert yaml.safe_load(example)
    path = tmp_path / "cluster.yaml"
    path.write_text(example, encoding="utf-8")
    assert create_app(make_config(str(path), {})).driver.cluster.snapshot()

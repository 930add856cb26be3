"""Extensions: those of docs/extensions.md, named `module:NAME`, and installed as a distribution with entry points."""

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from invoked import summary_of
from pages import DOCS, blocks, give_files
from sdks import openai

import llmirage
from llmirage_server.service.text import TextLoader

PAGE = DOCS / "extensions.md"
WEATHER = [{"role": "user", "content": "How is the weather?"}]
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
ROUTERS = "def last(request, instances):\n    return len(instances) - 1\n"
USES = """
import json

import llmirage

faults = ["shout; mark=!; times=1"]
with llmirage.Server(replies="weather", router="last", instances=2, faults=faults, virtual_time=True) as server:
    ask = server.openai().chat.completions.create
    said = [ask(model="m", messages=[{"role": "user", "content": "the weather"}]) for _ in "ab"]
result = llmirage.simulate("chats.tabs", router="last", slo="prefill_us_per_token_p99<1e9")
texts = [one.choices[0].message.content for one in said]
print(json.dumps({"texts": texts, "columns": list(result._columns()), "passed": result.passed}))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_metrics: None) -> Path:
    """A working directory with the page's files."""
    give_files(tmp_path, PAGE)
    (tmp_path / "my_routers.py").write_text(ROUTERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("my_llmirage", "my_routers"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_a_source_of_replies_says_text_calls_tools_or_leaves_it() -> None:
    with llmirage.Server(replies="my_llmirage:weather", virtual_time=True) as server:
        ask = server.openai().chat.completions.create
        said = ask(model="m", messages=WEATHER).choices[0]
        assert (said.message.content, said.finish_reason) == ("It is sunny.", "stop")
        assert ask(model="m", messages=WEATHER, stop=" sunny").choices[0].message.content == "It is"
        assert ask(model="m", messages=WEATHER, max_tokens=1).choices[0].finish_reason == "length"
        called = ask(model="m", messages=WEATHER, tools=[TOOL]).choices[0]  # type: ignore[call-overload]
        [call] = called.message.tool_calls
        assert (call.function.name, call.function.arguments) == ("get_weather", '{"city": "Rome"}')
        other = ask(model="m", messages=[{"role": "user", "content": "Tell me of cats."}]).choices[0].message.content
        assert len(other) > 20


@pytest.mark.parametrize(("body", "problem"), [("1 / 0", "raised ZeroDivisionError"), ("{1: 2}", "it must return a text")])
def test_a_source_that_fails_refuses_the_request_and_says_why(body: str, problem: str, folder: Path) -> None:
    (folder / "my_llmirage.py").write_text(f"def broken(request):\n    return {body}\n")
    with (
        llmirage.Server(replies="my_llmirage:broken", virtual_time=True) as server,
        pytest.raises(openai.BadRequestError, match=problem),
    ):
        server.openai().chat.completions.create(model="m", messages=WEATHER)


def test_a_source_sees_the_requests_of_clients_only(folder: Path) -> None:
    keep = "seen = []\ndef keep(request):\n    seen.append(request.last_user_text)\n    return 'Yes.'\n"
    (folder / "my_llmirage.py").write_text(keep)
    with llmirage.Server(replies="my_llmirage:keep") as server:
        server.openai().chat.completions.create(model="m", messages=WEATHER)
        assert sys.modules["my_llmirage"].seen == [WEATHER[0]["content"]]


def test_a_server_that_fails_after_its_start_leaves_no_client_waiting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    load, results = TextLoader.load, iter([0])
    monkeypatch.setattr(TextLoader, "load", lambda loader: load(loader) if next(results, 1) else 1 / 0)
    with llmirage.Server(virtual_time=True) as server, pytest.raises(openai.APIConnectionError) as raised:
        server.openai(max_retries=0).chat.completions.create(model="m", messages=WEATHER)
    assert str(raised.value.__cause__) in ("the server closed", "the server is closed")  # when, or before, it was asked
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.usefixtures("folder")
def test_a_fault_edits_streams_and_bodies_and_no_request_can_import_one() -> None:
    with llmirage.Server(script=[{"reply": "Yes, it is."}], virtual_time=True) as server:
        fault = server.fault("my_llmirage:Shout", mark="!", times=1)
        ask = server.openai().chat.completions.create
        said = [ask(model="m", messages=WEATHER).choices[0].message.content for _ in range(2)]
        assert said == ["YES, IT IS.!", "Yes, it is."]
        assert fault.happened == 1
        assert server._server.app.faults.rules[0].shown()["kind"] == "my_llmirage:Shout"
        with pytest.raises(llmirage.ConfigError, match=r"fault 'my_llmirage:weather': it must be a subclass"):
            server.fault("my_llmirage:weather")
        with pytest.raises(llmirage.ConfigError, match=r"'my_llmirage' has no 'Shot' .did you mean 'Shout'"):
            server.fault("my_llmirage:Shot")
        import httpx

        with httpx.Client(transport=server.transport, base_url=server.url) as client:
            refused = client.post("/llmirage/faults", json={"kind": "os:getcwd"})
        assert refused.status_code == 400
        assert "there is no fault 'os:getcwd'" in refused.text


@pytest.mark.usefixtures("folder")
def test_a_format_reads_files_with_its_options() -> None:
    loaded = llmirage.load_workload("chats.tabs", format="my_llmirage:TABS", format_option=["max_tokens=7"])
    assert loaded.turns == 3
    with pytest.raises(llmirage.ConfigError, match=r"Known formats: "):
        llmirage.load_workload("chats.tabs")
    with pytest.raises(llmirage.ConfigError, match=r"must be an llmirage\.WorkloadFormat"):
        llmirage.load_workload("chats.tabs", format="my_llmirage:weather")


def test_a_metric_is_in_files_and_frames(folder: Path) -> None:
    metric = {"metric": ["my_llmirage:PREFILL_PER_TOKEN"]}
    result = llmirage.simulate("bundled:dag-example", set=metric)
    columns = result._columns()
    assert columns["prefill_us_per_token"] == pytest.approx(1000 * columns["ttft_ms"] / columns["isl"])
    with llmirage.Server(virtual_time=True) as server, pytest.raises(llmirage.ConfigError, match="no_such_module"):
        llmirage.run("bundled:dag-example", url=server.url, set={"metric": ["no_such_module:X"]})
    with llmirage.Server(port=0, speed="max") as server:
        run = llmirage.run("bundled:dag-example", url=server.url, artifact_dir=folder / "out", set=metric)
    entry = summary_of(run.folder)["prefill_us_per_token"]
    assert entry["unit"] == "us"
    assert entry["avg"] > 0


def test_a_metric_that_fails_is_left_out_and_named(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "my_bad.py").write_text("import llmirage\nBAD = llmirage.Metric('bad', 'Bad', 's', lambda r: r['nothing'])\n")
    result = llmirage.simulate("bundled:dag-example", set={"metric": ["my_bad:BAD"]})
    assert "bad" not in result._columns()
    assert "Metric bad was left out: KeyError: 'nothing'" in caplog.text


def written_wheel(folder: Path, project: dict[str, Any], modules: list[str]) -> Path:
    """The wheel of a project of these modules, made without a build backend: an environment need not have one."""
    stem = f"{project['name'].replace('-', '_')}-{project['version']}"
    points = "".join(
        f"[{group}]\n" + "".join(f"{name} = {place}\n" for name, place in named.items())
        for group, named in project["entry-points"].items()
    )
    texts = {f"{module}.py": (folder / f"{module}.py").read_text() for module in modules} | {
        f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n",
        f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{stem}.dist-info/entry_points.txt": points,
    }
    record = "".join(f"{name},,\n" for name in [*texts, f"{stem}.dist-info/RECORD"])
    wheel = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in (texts | {f"{stem}.dist-info/RECORD": record}).items():
            archive.writestr(name, text)
    return wheel


def test_an_installed_distribution_offers_its_extensions_by_name(folder: Path) -> None:
    [settings] = [tomllib.loads(block.text) for block in blocks(PAGE) if block.language == "toml"]
    site, elsewhere = folder / "site", folder / "elsewhere"
    elsewhere.mkdir()
    (folder / "chats.tabs").rename(elsewhere / "chats.tabs")
    wheel = written_wheel(folder, settings["project"], settings["tool"]["setuptools"]["py-modules"])
    zipfile.ZipFile(wheel).extractall(site)  # as pip installs it
    paths = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, "-c", USES], cwd=elsewhere, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["texts"] == ["IT IS SUNNY.!", "It is sunny."]
    assert "prefill_us_per_token" in found["columns"]
    assert found["passed"]


def test_pages_use_no_private_imports() -> None:
    private = re.compile(r"^\s*(?:from|import) (llmirage_(?:server|client|shared)|llmirage\._)", re.MULTILINE)
    pages = [*DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb"), DOCS.parent / "README.md"]
    assert len(pages) > 40
    assert not [str(page) for page in pages if private.search(page.read_text(encoding="utf-8").replace('"', "\n"))]

"""/llmirage/script, and files that change while the server runs."""

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from raw_asgi import RawAnswer

from llmirage_server.app import create_app
from llmirage_server.config import ClusterConfig, ConfigError

PATH = "/llmirage/script"
YES, NO = {"when": {"user": "a"}, "reply": "yes"}, {"reply": "no"}


def said(reply: Any) -> str:
    text: str = reply.json()["choices"][0]["message"]["content"]
    return text


def test_rules_are_added_replaced_and_dropped(make_api: Callable[..., Any]) -> None:
    api = make_api()
    assert api.request("GET", PATH).json() == {"files": [], "rules": [], "fallback": "generated", "misses": 0}
    assert api.post(PATH, {"rules": [NO]}).status_code == 200
    assert said(api.chat("a")) == "no"
    api.post(PATH, {"rules": [YES]})
    assert [said(api.chat("a")), said(api.chat("b"))] == ["yes", "no"]
    shown = api.request("GET", PATH).json()["rules"]
    assert [(rule["rule"], rule["replied"]) for rule in shown] == [("script 2 rules[0]", 1), ("script rules[0]", 2)]
    api.request("PUT", PATH, json={"rules": [], "fallback": "error"})
    assert api.chat("a").status_code == 404
    assert api.request("GET", PATH).json()["misses"] == 3 - 2
    assert api.request("DELETE", PATH).json()["rules"] == []
    assert api.chat("a", max_tokens=1).status_code == 200


def test_wrong_rules_change_nothing(make_api: Callable[..., Any]) -> None:
    api = make_api()
    api.post(PATH, {"rules": [YES]})
    refused = api.post(PATH, {"rules": [{"repyl": "x"}, {"when": {"usr": "b"}, "reply": "c"}]})
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["code"] == "invalid_script"
    assert "rules[0].repyl: unknown key (did you mean 'reply'?)" in error["message"]
    assert "rules[1].when.usr" in error["message"]
    deep: list[Any] = []
    for _ in range(40):
        deep = [deep]
    assert "nested more than 32 deep" in api.post(PATH, {"rules": [{"reply": {"json": deep}}]}).text
    assert said(api.chat("a")) == "yes"


def test_scripts_need_the_servers_key(make_api: Callable[..., Any]) -> None:
    api = make_api(api_key=("sk-1",))
    assert api.post(PATH, {"rules": [NO]}).status_code == 401
    assert api.request("DELETE", PATH).status_code == 401
    assert api.app.service.scripts is None


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmirage_server.service.scripts._LOOK_AGAIN_S", 0.0)


def written(path: Path, *rules: Any, **more: Any) -> str:
    before = path.stat().st_mtime_ns if path.exists() else 0
    path.write_text(json.dumps({"rules": list(rules), **more}))
    os.utime(path, ns=(before + 10**9, before + 10**9))
    return str(path)


@pytest.mark.usefixtures("no_pause")
def test_a_file_is_read_again_when_it_changes(make_api: Callable[..., Any], tmp_path: Path, caplog: Any) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    api = make_api(script=(written(first, YES), written(second, NO)))
    assert [said(api.chat("a")), said(api.chat("b"))] == ["yes", "no"]
    written(first, {"when": {"user": "a"}, "reply": "changed"})
    assert [said(api.chat("a")), said(api.chat("b"))] == ["changed", "no"]
    caplog.clear()
    with caplog.at_level(logging.ERROR):
        written(first, {"when": {"user": "a"}, "repyl": "broken"})
        assert [said(api.chat("a")), said(api.chat("a"))] == ["changed", "changed"]
        first.unlink()
        assert said(api.chat("a")) == "changed"
    assert len(caplog.records) == 2
    assert f"{first}:1: rules[0].repyl: unknown key" in caplog.text
    written(first, {"when": {"user": "a"}, "reply": "mended"})
    assert said(api.chat("a")) == "mended"


@pytest.mark.usefixtures("no_pause")
def test_rules_of_run_time_come_first_and_outlive_a_changed_file(make_api: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    api = make_api(script=(written(path, NO),))
    api.post(PATH, {"rules": [YES]})
    written(path, {"reply": "other"})
    assert [said(api.chat("a")), said(api.chat("b"))] == ["yes", "other"]
    api.request("PUT", PATH, json={"rules": [NO]})
    written(path, {"reply": "not read any more"})
    assert said(api.chat("a")) == "no"


def test_all_files_are_refused_at_the_start_with_all_problems(tmp_path: Path) -> None:
    paths = [written(tmp_path / "a.json", {"repyl": 1}), written(tmp_path / "b.json", NO, fallback="never")]
    with pytest.raises(ConfigError) as refused:
        create_app(ClusterConfig(script=tuple(paths)))
    assert [problem.partition(":")[0] for problem in refused.value.problems] == [paths[0], paths[0], paths[1]]


def test_files_may_not_disagree_about_the_fallback(tmp_path: Path) -> None:
    paths = [written(tmp_path / "a.json", YES, fallback="error"), written(tmp_path / "b.json", fallback="upstream")]
    app = create_app()
    with pytest.raises(ConfigError, match=f"{paths[1]}: fallback: upstream, but another script says error"):
        app.new_scripts(paths)
    assert app.new_scripts([paths[0], written(tmp_path / "b.json", NO)]).fallback == "error"


async def test_a_delay_takes_the_clusters_time() -> None:
    """At --speed 4 a delay of 2 s is over in 0.5 s; then the first token takes the cluster's time."""
    app = create_app(
        ClusterConfig(ttft_ms=400.0, itl_ms=40.0, speed=4.0),
        script={"rules": [{"when": {"user": "late"}, "reply": {"text": "a b c", "delay_s": 2}}, {"reply": "a b c"}]},
    )
    times = []
    for prompt in ("late", "soon"):
        answer = await RawAnswer().ask(app, "/v1/completions", {"model": "m", "prompt": prompt, "stream": True})
        times.append(answer.times[0] - answer.began_s)
    late, soon = times
    assert soon == pytest.approx(0.1)
    assert late == pytest.approx(0.6)

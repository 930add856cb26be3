"""`serve --replay`: when events leave, and what answers a request without a recording."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from recorded import recordings_in
from replayed import CHAT, HELLO, STREAM, WHOLE_STREAM, ask, replaying, said, write

from llmirage_server.config import ClusterConfig, ConfigError
from llmirage_server.replies.recordings.recording import Chunk, Recording
from llmirage_server.replies.recordings.store import RecordingWriter


@pytest.mark.parametrize(
    ("settings", "times_ms"),
    [
        ({"replay_timing": "recorded"}, [100.0, 350.0]),
        ({"replay_timing": "recorded", "speed": 10.0}, [10.0, 35.0]),
        ({"replay_timing": "none"}, [0.0]),
        # The first token after 40 ms, with what comes before it; then " two three four", which are 3, and the end.
        ({"replay_timing": "cluster"}, [40.0, 70.0]),
    ],
)
def test_events_leave_at_the_times_asked_for(tmp_path: Path, settings: Any, times_ms: list[float]) -> None:
    write(tmp_path)
    sent = ask(replaying(tmp_path, **settings))
    assert (sent.status, sent.complete, sent.body) == (200, True, WHOLE_STREAM)
    assert sent.times_ms == pytest.approx(times_ms)
    assert sent.headers[b"content-type"].startswith(b"text/event-stream")
    assert sent.headers[b"retry-after"] == b"3"


@pytest.mark.parametrize(("timing", "at_ms"), [("recorded", 350.0), ("none", 0.0), ("cluster", 60.0)])
def test_a_whole_response_leaves_when_it_is_complete(tmp_path: Path, timing: str, at_ms: float) -> None:
    answer = b'{"choices":[{"message":{"content":"one two three"}}]}'
    write(tmp_path, HELLO, answer=answer)
    sent = ask(replaying(tmp_path, replay_timing=timing), HELLO)
    assert (sent.body, sent.times_ms) == (answer, [pytest.approx(at_ms)])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "Hi", "stream": True}),
        ("/v1/responses", {"input": "Hi", "previous_response_id": "resp_unknown", "stream": True}),
        ("/v1/messages", {"messages": HELLO["messages"], "max_tokens": 5, "stream": True}),
        ("/v1/embeddings", {"input": ["Hi", "Ho"]}),
        (CHAT, {"messages": "of no form that is known", "stream": True}),
    ],
)
def test_the_cluster_gives_every_api_its_time(tmp_path: Path, path: str, body: dict[str, Any]) -> None:
    body = {"model": "m", **body}
    write(tmp_path, body, path)
    sent = ask(replaying(tmp_path, replay_timing="cluster"), body, path)
    assert (sent.complete, sent.body) == (True, WHOLE_STREAM)
    assert sent.times_ms[0] == pytest.approx(40.0)


FORM = {"type": "json_schema", "name": "a", "schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
WRITTEN = {"messages": HELLO["messages"], "max_tokens": 5}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, WRITTEN | {"response_format": {"type": "json_schema", "json_schema": FORM}}),
        ("/v1/responses", {"input": "Hello", "max_output_tokens": 16, "text": {"format": FORM}}),
        ("/v1/messages", WRITTEN | {"output_config": {"format": {"type": "json_schema", "schema": FORM["schema"]}}}),
    ],
)
def test_a_recorded_prompt_costs_the_cluster_what_a_generated_one_does(
    tmp_path: Path, path: str, body: dict[str, Any]
) -> None:
    body = {"model": "m", **body}
    app = replaying(tmp_path, replay_timing="cluster", on_miss="generated")
    ask(app, body, path)
    write(tmp_path, body, path)
    again = replaying(tmp_path, replay_timing="cluster")
    ask(again, body, path)
    [generated], [replayed] = app.journal.entries, again.journal.entries
    assert (generated.rule, replayed.rule != "") == ("", True)
    assert replayed.prompt_tokens == generated.prompt_tokens > 0


@pytest.mark.parametrize("body", [HELLO, STREAM])
def test_the_port_of_an_instance_replays_on_that_instance(tmp_path: Path, body: dict[str, Any]) -> None:
    write(tmp_path, body)
    app = replaying(tmp_path, replay_timing="cluster", instances=3, router="round_robin")
    app.ports = {9001: (1, -1)}
    for _ in range(3):
        assert ask(app, body, port=9001).status == 200
    assert [one.prefix_query_tokens > 0 for one in app.driver.snapshot()] == [False, True, False]


def test_a_long_stream_at_the_clusters_pace_has_no_pings_of_its_own(tmp_path: Path) -> None:
    """Nor does it end where the context of the cluster's model does: the recorded one may have a longer one."""
    events = [said(f" {number}") for number in range(2_000)]
    chunks = [Chunk(0.0, event) for event in events]
    RecordingWriter(tmp_path).write(
        Recording("POST", CHAT, STREAM, 200, {"content-type": "text/event-stream"}, chunks, True)
    )
    sent = ask(replaying(tmp_path, replay_timing="cluster", max_model_len=1_900))
    assert (sent.complete, sent.body) == (True, b"".join(events))
    assert sent.times_ms[-1] > 15_000  # pings are sent every 15 s


def test_a_response_that_was_cut_is_cut_again(tmp_path: Path) -> None:
    write(tmp_path, ended="the upstream broke off")
    sent = ask(replaying(tmp_path))
    assert (sent.body, sent.complete) == (WHOLE_STREAM, False)


def test_a_replay_ends_when_its_client_leaves(tmp_path: Path) -> None:
    write(tmp_path)
    app = replaying(tmp_path)
    sent = ask(app, leaves_ms=200.0)
    assert (sent.times_ms, sent.complete) == ([100.0], False)
    assert [(entry.outcome, entry.rule) for entry in app.journal.entries] == [
        ("client_left", recordings_in(tmp_path)[0].name + ".yaml")
    ]


# --- requests without a recording ---


def test_a_miss_is_an_error_that_names_the_nearest_recording(tmp_path: Path) -> None:
    write(tmp_path)
    sent = ask(replaying(tmp_path), STREAM | {"messages": [{"role": "user", "content": "Bye"}]})
    error = json.loads(sent.body)["error"]
    assert (sent.status, error["code"]) == (404, "no_recording")
    assert f"{recordings_in(tmp_path)[0].name}.yaml, differs at messages[0].content" in error["message"]


@pytest.mark.parametrize("timing", ["none", "cluster"])
def test_the_journal_says_what_was_asked_without_keys(tmp_path: Path, timing: str) -> None:
    write(tmp_path)
    app = replaying(tmp_path, replay_timing=timing)
    ask(app)
    ask(
        app,
        HELLO | {"messages": [{"role": "user", "content": "my key is 0123456789"}]},
        headers=[(b"x-api-key", b"0123456789")],
    )
    entries = [(entry.model, entry.user, entry.stream, entry.status) for entry in app.journal.entries]
    assert entries == [("m", "Hello", True, 200), ("m", "my key is REDACTED", False, 404)]


def test_a_miss_may_be_generated(tmp_path: Path) -> None:
    write(tmp_path)
    app = replaying(tmp_path, on_miss="generated")
    other = STREAM | {"max_tokens": 3, "messages": [{"role": "user", "content": "Bye"}]}
    compressed = gzip.compress(json.dumps(other).encode())
    sent = ask(app, compressed, headers=[(b"content-encoding", b"gzip")])
    assert (sent.status, sent.complete) == (200, True)
    assert sent.body.endswith(b"data: [DONE]\n\n")
    assert ask(app).body == WHOLE_STREAM


def test_other_endpoints_are_served_as_ever(tmp_path: Path) -> None:
    write(tmp_path)
    assert ask(replaying(tmp_path), {"prompt": "x"}, "/tokenize").status == 200


def test_a_body_that_is_not_json_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    assert ask(replaying(tmp_path), b"{").status == 400


def test_what_is_redacted_in_a_recording_is_redacted_in_the_request_too(tmp_path: Path) -> None:
    body = STREAM | {"messages": [{"role": "user", "content": "my key is REDACTED"}]}
    write(tmp_path, body)
    asked = STREAM | {"messages": [{"role": "user", "content": "my key is 0123456789"}]}
    headers = [(b"authorization", b"Bearer 0123456789")]
    assert ask(replaying(tmp_path), asked, headers=headers).body == WHOLE_STREAM


@pytest.mark.parametrize("deep", [100, 600, 800, 900, 950, 5000])
def test_a_request_of_any_depth_is_missed_or_refused(tmp_path: Path, deep: int) -> None:
    write(tmp_path)
    for form in (b'{"metadata":%b}', b'{"messages":%b}', b'{"messages":[{"role":"user","content":%b}]}'):
        assert ask(replaying(tmp_path), form % (b"[" * deep + b"]" * deep)).status in (400, 404)


def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        replaying(tmp_path / "none")
    deep = write(tmp_path)
    deep.write_text(deep.read_text().replace("content: Hello", "content: " + "[" * 2000 + "]" * 2000))
    with pytest.raises(ConfigError, match="nested too deep"):
        replaying(tmp_path)
    deep.unlink()
    (tmp_path / "odd.yaml").write_text("a: b")
    with pytest.raises(ConfigError, match=r"odd.yaml: is no recording"):
        replaying(tmp_path)
    with pytest.raises(ConfigError, match="--upstream"):
        replaying(tmp_path, on_miss="record")
    for url in ("api.openai.com", "ftp://x", "https://me:pw@x"):
        with pytest.raises(ConfigError, match="upstream"):
            ClusterConfig(upstream=url)


def test_a_recording_with_what_is_taken_for_a_key_today_is_found(tmp_path: Path) -> None:
    """It may be of an earlier version, or written by hand."""
    body = STREAM | {"messages": [{"role": "user", "content": "use sk-abcdefgh12345678"}]}
    write(tmp_path, body)
    assert ask(replaying(tmp_path), body).body == WHOLE_STREAM

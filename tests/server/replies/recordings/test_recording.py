"""The file of a recording: it gives back every byte, reads well, and says what is wrong with it."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmirage_server.replies.recordings.recording import Chunk, Recording, RecordingError, write_json
from llmirage_server.replies.recordings.store import Matcher, RecordingLibrary, RecordingWriter, read_folder

TEXTS = st.text(st.characters(codec="utf-8"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=12,
)
STYLES = ("compact", "compact ascii", "spaced", "spaced ascii", "indented", "indented ascii")
SAID = {"messages": [{"role": "user", "content": "Hello, World! How are you?\nWell?"}], "model": "m"}


def streamed(*events: bytes, body: Any = SAID, **fields: Any) -> Recording:
    chunks = [Chunk(1.5 * place, event) for place, event in enumerate(events)]
    return Recording(
        "POST", "/v1/chat/completions", body, 200, {"content-type": "text/event-stream"}, chunks, True, **fields
    )


@given(
    JSON,
    st.lists(st.binary() | TEXTS.map(lambda text: f"{text}\n\n".encode())),
    JSON,
    st.sampled_from(STYLES),
    st.booleans(),
)
def test_a_file_gives_back_every_byte(body: Any, events: list[bytes], answer: Any, style: str, newline: bool) -> None:
    recording = streamed(*events, body=body)
    assert Recording.read(recording.text(), "x") == recording
    whole = Recording("POST", "/v1/x", body, 200, {}, [Chunk(1.0, write_json(answer, style, newline))])
    assert Recording.read(whole.text(), "x") == whole


@given(st.binary())
def test_any_body_is_kept(data: bytes) -> None:
    recording = Recording("POST", "/v1/x", None, 200, {}, [Chunk(0.0, data)])
    assert Recording.read(recording.text(), "x").data == data


def test_a_file_reads_well() -> None:
    text = streamed(b'event: done\ndata: {"a": "b"}\n\n').text()
    assert "    messages:\n    - role: user\n      content: |-\n        Hello, World! How are you?\n        Well?\n" in text
    assert '  - at_ms: 0.0\n    sse: |\n      event: done\n      data: {"a": "b"}\n' in text
    vector = Recording("POST", "/v1/embeddings", {}, 200, {}, [Chunk(0.0, b'{"embedding":[0.1,-2e-05,3.0],"model":"m"}')])
    assert "  json:\n    embedding: [0.1, -2.0e-05, 3.0]\n    model: m\n" in vector.text()


HEAD = "format: llmirage-recording/1\n"
REQUEST = "request: {method: POST, path: /v1/x}\n"
DEEP = "[" * 5_000 + "]" * 5_000


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is not YAML"),
        ("a: b", "is no recording"),
        (HEAD, "request is missing"),
        (HEAD + REQUEST + "response: 5", "response: must be a mapping"),
        (HEAD + REQUEST + "response: {status: true, headers: {}, text: a}", "status: must be a number"),
        (HEAD + REQUEST + "response: {status: 200, headers: {}}", "one of sse, text, base64 and json"),
        (HEAD + REQUEST + "response: {status: 200, headers: {}, base64: '*'}", "is not base64"),
        (HEAD + REQUEST + "response: {status: 200, headers: {}, json: 1, style: odd}", "style: must be one of"),
        (HEAD + REQUEST + "response: {status: 200, headers: {}, events: [{at_ms: -1, sse: a}]}", "at_ms: must be a number"),
        (HEAD + REQUEST + "response: {status: 200, headers: {}, events: [5]}", "events: each must be a mapping"),
        (HEAD + REQUEST + "response: {status: 99999, headers: {}, text: a}", "status: must be from 200 to 599"),
        (HEAD + REQUEST + "response: {status: 100, headers: {}, text: a}", "status: must be from 200 to 599"),
        (HEAD + REQUEST + 'response: {status: 200, headers: {a: "b\\r\\nc: d"}, text: a}', "the value of a has a character"),
        (HEAD + REQUEST + "response: {status: 200, headers: {'a b': c}, text: a}", "headers: 'a b' cannot be one"),
        (HEAD + REQUEST + "response: {status: 200, headers: {Content-Length: 3}, text: a}", "headers: 'content-length'"),
        (HEAD + REQUEST + "response: {status: 200, headers: {}, json: &a [*a]}", "an alias contains itself"),
        (HEAD + REQUEST + f"response: {{status: 200, headers: {{}}, json: {DEEP}}}", "nested too deep"),
        (
            HEAD + f"request: {{method: POST, path: /, body: {DEEP}}}\nresponse: {{status: 200, headers: {{}}, text: a}}",
            "nested too deep",
        ),
        (
            HEAD + REQUEST + "response: {status: 200, headers: {}, json: 2001-01-01}",
            "that JSON cannot carry: Object of type",
        ),
        (HEAD + REQUEST + "response: {status: 200, headers: {}, json: !!set {a}}", "that JSON cannot carry: Object"),
        (HEAD + REQUEST + "response: {status: 200, headers: {}, json: {[a]: b}}", "is not YAML|that JSON cannot carry"),
        (HEAD + REQUEST + 'response: {status: 200, headers: {}, text: "\\ud800"}', "is not YAML|that JSON cannot carry"),
        (HEAD + REQUEST + "response: {status: 200, headers: {}, json: 1, style: []}", "style: must be one of"),
    ],
)
def test_a_file_that_is_no_recording_is_refused(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=problem.replace("(", r"\(")):
        Recording.read(text, "x")
    (tmp_path / "bad.yaml").write_text(text)
    _, [told] = read_folder(tmp_path)
    assert told.startswith(f"{tmp_path / 'bad.yaml'}: ")


# --- folders ---


def library(folder: Path) -> RecordingLibrary:
    recordings, problems = read_folder(folder)
    assert not problems
    return RecordingLibrary(recordings, Matcher())


def test_names_say_what_was_asked_and_stay_the_same(tmp_path: Path) -> None:
    names = []
    for _ in range(2):
        writer = RecordingWriter(tmp_path)
        names.append([writer.write(streamed(b"data: 1\n\n")).name for _ in range(2)])
    assert names[0] == names[1]
    assert names[0][0].startswith("chat-hello-world-how-are-you-well-")
    assert names[0][1] == names[0][0].replace(".yaml", "-2.yaml")
    assert len(list(tmp_path.iterdir())) == 2


def test_a_request_recorded_several_times_is_answered_in_that_order(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path)
    for number in range(11):
        writer.write(streamed(b"data: %d\n\n" % number))
    found = library(tmp_path)
    answers = [found.find("/v1/chat/completions", SAID) for _ in range(13)]
    assert [json.loads(answer.data[6:]) for answer in answers if answer] == [*range(11), 10, 10]


def test_an_incomplete_recording_answers_only_where_there_is_no_other(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path)
    writer.write(streamed(b"data: 1\n\n", ended="the client left"))
    first = library(tmp_path).find("/v1/chat/completions", SAID)
    assert first is not None
    assert first.ended == "the client left"
    writer.write(streamed(b"data: 2\n\n"))
    second = library(tmp_path).find("/v1/chat/completions", SAID)
    assert second is not None
    assert second.data == b"data: 2\n\n"


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = RecordingWriter(tmp_path)
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk")))
    with pytest.raises(OSError, match="disk"):
        writer.write(streamed(b"data: 1\n\n"))
    assert not list(tmp_path.iterdir())


def test_the_nearest_recording_and_where_it_differs(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path)
    writer.write(streamed(b"data: 1\n\n"))
    other = {"messages": [{"role": "user", "content": "Bye"}], "model": "m"}
    nearest = library(tmp_path).nearest("/v1/chat/completions", other)
    assert nearest is not None
    assert nearest[1] == "messages[0].content"
    assert library(tmp_path).nearest("/v1/embeddings", {"input": "x"}) is None

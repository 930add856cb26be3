"""`llmirage record convert`: what other tools recorded answers requests as it did there."""

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from recorded import recordings_in

from llmirage_server.commands.record import record

ASKED = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hello"}]}
ANSWER = {"id": "chatcmpl-1", "object": "chat.completion", "choices": [{"index": 0, "message": {"content": "Hi é"}}]}
CHUNKS = [{"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": text}}]} for text in ("Hi", "!")]
EVENTS = (
    b"".join(b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n" for chunk in CHUNKS)
    + b"data: [DONE]\n\n"
)
URI = "https://api.openai.com/v1/chat/completions"


def convert(out: Path, *files: Path, more: tuple[str, ...] = ()) -> Result:
    return CliRunner().invoke(record, ["convert", *map(str, files), "--out", str(out), *more])


def converted(tmp_path: Path, name: str, text: str, *more: str) -> Any:
    (tmp_path / name).write_text(text, encoding="utf-8")
    result = convert(tmp_path / "out", tmp_path / name, more=more)
    assert result.exit_code == 0, result.output
    return recordings_in(tmp_path / "out")


def cassette(*pairs: tuple[dict[str, Any], dict[str, Any]]) -> str:
    asked = {"method": "POST", "uri": URI, "headers": {}}
    answered = {"status": {"code": 200, "message": "OK"}, "headers": {"Content-Type": ["application/json"]}}
    interactions = [{"request": asked | request, "response": answered | response} for request, response in pairs]
    return yaml.safe_dump({"interactions": interactions, "version": 1})


@pytest.mark.parametrize(
    ("request_part", "response_part"),
    [
        ({"body": json.dumps(ASKED)}, {"body": {"string": json.dumps(ANSWER)}}),
        ({"body": json.dumps(ASKED).encode()}, {"body": {"string": json.dumps(ANSWER).encode()}}),
        ({"body": json.dumps(ASKED)}, {"body": {"string": gzip.compress(json.dumps(ANSWER).encode())},
                                       "headers": {"content-encoding": ["gzip"], "content-type": ["application/json"]}}),
        ({"parsed_body": ASKED}, {"parsed_body": ANSWER}),
        ({"body": json.dumps(ASKED)}, {"body": {"base64_string": base64.b64encode(json.dumps(ANSWER).encode()).decode()}}),
        ({"body": json.dumps(ASKED)}, {"body": {"string": json.dumps(ANSWER)},
                                       "headers": {"content-encoding": ["br"], "content-type": ["application/json"]}}),
    ],
    ids=["text", "bytes", "gzip", "parsed", "base64", "decoded"],
)  # fmt: skip
def test_a_cassette(tmp_path: Path, request_part: dict[str, Any], response_part: dict[str, Any]) -> None:
    secret = {"headers": {"authorization": ["Bearer 0123456789"], "Cookie": ["a=b"]}}
    [found] = converted(tmp_path, "test.yaml", cassette((secret | request_part, response_part)))
    assert (found.path, found.body, found.status, found.stream) == ("/v1/chat/completions", ASKED, 200, False)
    assert json.loads(found.data) == ANSWER
    assert dict(found.headers) == {"content-type": "application/json"}
    assert "0123456789" not in (tmp_path / "out" / f"{found.name}.yaml").read_text()


def test_a_stream_of_a_cassette_has_its_events(tmp_path: Path) -> None:
    headers = {"headers": {"Content-Type": ["text/event-stream; charset=utf-8"]}}
    [found] = converted(tmp_path, "t.yaml", cassette(({"body": json.dumps(ASKED)}, {"body": {"string": EVENTS}} | headers)))
    assert (found.data, len(found.chunks), found.stream) == (EVENTS, 3, True)


def test_what_is_no_exchange_with_a_model_is_left_out(tmp_path: Path) -> None:
    other = {"uri": "https://api.openai.com/v1/files", "body": "{}"}
    text = cassette((other, {"body": {"string": ""}}), ({"body": json.dumps(ASKED)}, {"body": {"string": "{}"}}))
    assert len(converted(tmp_path, "t.yaml", text)) == 1


def test_a_compressed_body_of_a_cassette_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    packed = {"headers": {"Content-Encoding": ["br"]}, "body": {"string": b"\x8b\x02\x80{}\x03"}}
    (tmp_path / "t.yaml").write_text(cassette(({"body": json.dumps(ASKED)}, packed)))
    result = convert(tmp_path / "out", tmp_path / "t.yaml")
    assert (result.exit_code, "interaction 1: the response is compressed (br)" in result.output) == (2, True)


MESSAGE = {"type": "message", "content": [{"type": "text", "text": "Hi"}]}


@pytest.mark.parametrize(
    ("pair", "path", "data"),
    [
        ({"request": ASKED, "response": ANSWER}, "/v1/chat/completions", None),
        ({"request": ASKED | {"max_tokens": 5}, "response": MESSAGE}, "/v1/messages", None),
        ({"request": {"model": "m", "prompt": "x"}, "response": {}}, "/v1/completions", None),
        ({"request": {"model": "m", "input": "x"}, "response": {"object": "list"}}, "/v1/embeddings", None),
        ({"request": {"model": "m", "input": "x"}, "response": {"object": "response"}}, "/v1/responses", None),
        ({"path": "/v1/responses", "request": {"model": "m"}, "response": {}}, "/v1/responses", None),
        (
            {"request": ASKED, "response": CHUNKS},
            "/v1/chat/completions",
            EVENTS.replace(b": ", b":").replace(b"data:", b"data: "),
        ),
        (
            {"request": ASKED, "response": [{"type": "message_start"}]},
            "/v1/messages",
            b'event: message_start\ndata: {"type":"message_start"}\n\n',
        ),
    ],
)
def test_a_pair(tmp_path: Path, pair: dict[str, Any], path: str, data: bytes | None) -> None:
    [found] = converted(tmp_path, "pairs.jsonl", json.dumps(pair) + "\n\n")
    assert found.path == path
    if data is None:
        assert (json.loads(found.data), found.body) == (pair["response"], pair["request"])
    else:
        assert (found.data, found.body) == (data, pair["request"] | {"stream": True})


def test_input_and_output_of_a_batch_are_joined(tmp_path: Path) -> None:
    asked = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": ASKED}
    answered = {"id": "batch_1", "custom_id": "a", "response": {"status_code": 429, "body": ANSWER}, "error": None}
    (tmp_path / "in.jsonl").write_text(json.dumps(asked))
    (tmp_path / "out.jsonl").write_text(json.dumps(answered))
    assert convert(tmp_path / "folder", tmp_path / "out.jsonl", tmp_path / "in.jsonl").exit_code == 0
    [found] = recordings_in(tmp_path / "folder")
    assert (found.status, found.body, json.loads(found.data)) == (429, ASKED, ANSWER)
    alone = convert(tmp_path / "alone", tmp_path / "out.jsonl")
    assert (alone.exit_code, "give both files" in alone.output) == (2, True)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.yaml", "{", "is not YAML"),
        ("a.yaml", "a: b", "is no cassette"),
        ("a.json", '{"fixtures": []}', "which become a script: llmirage script convert"),
        ("a.yaml", "interactions: [5]", "interaction 1 must be a mapping"),
        ("a.yaml", "interactions: [{request: {}}]", "interaction 1 needs a request and a response"),
        ("a.yaml", "interactions: []", "no exchange with"),
        ("a.jsonl", "{", "line 1 is not JSON"),
        ("a.jsonl", "\n5", "a.jsonl:2: must be an object"),
        ("a.jsonl", '{"request": {"a": 1}, "response": {}}', "no API is known"),
        ("a.jsonl", '{"path": "/v1/files", "request": {"a": 1}, "response": {}}', "no API is known for /v1/files"),
    ],
)
def test_a_file_that_cannot_be_converted(tmp_path: Path, name: str, text: str, problem: str) -> None:
    (tmp_path / name).write_text(text)
    result = convert(tmp_path / "out", tmp_path / name)
    assert (result.exit_code, problem in result.output) == (2, True), result.output
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    result = convert(tmp_path / "out", tmp_path / "none.yaml")
    assert (result.exit_code, "No such file" in result.output) == (2, True)

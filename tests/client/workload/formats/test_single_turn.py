"""single_turn: rows become requests with the content AIPerf sends; every fault with its line and field."""

import base64
from pathlib import Path
from typing import Any

import pytest
from workload_files import assert_refused, problems_of, write

from llmirage_client.workload.registry import detect, load
from llmirage_client.workload.session import Session, Turn

EXAMPLE = Path(__file__).parents[3] / "data" / "aiperf" / "single_turn.jsonl"
PNG = b"\x89PNG\r\n\x1a\n rest"
PNG_URI = "data:image/png;base64,iVBORw0KGgo="


def image(url: str, **more: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}, **more}


def text(value: str) -> dict[str, str]:
    return {"type": "text", "text": value}


def content_of(tmp_path: Path, row: dict[str, Any]) -> Any:
    (session,) = load(write(tmp_path, row), "single_turn").sessions.values()
    (message,) = session.turns[0].messages
    assert message["role"] == "user"
    return message["content"]


def test_each_line_is_a_request_of_its_own() -> None:
    workload = load(str(EXAMPLE))
    assert workload.format == detect(str(EXAMPLE)) == "single_turn"
    assert workload.roots == ("request_1", "request_2", "request_3", "ordered")
    assert workload.sessions["request_1"] == Session(
        "request_1",
        (Turn(messages=({"role": "user", "content": "What is machine learning?"},), max_tokens=24),),
        mode="isolated",
        line=1,
    )
    assert workload.sessions["request_2"].turns[0].extra == {"temperature": 0.2}


def test_lines_of_one_session_go_out_in_order_and_share_nothing() -> None:
    session = load(str(EXAMPLE)).sessions["ordered"]
    assert session.mode == "isolated"
    assert [turn.messages[0]["content"] for turn in session.turns] == ["Summarise chapter one.", "Summarise chapter two."]
    assert [turn.delay_s for turn in session.turns] == [0.0, 0.02]


@pytest.mark.parametrize(
    ("row", "content"),
    [
        ({"text": "a"}, "a"),
        ({"texts": ["a"]}, "a"),
        ({"texts": ["a", "b"]}, [text("a"), text("b")]),
        ({"texts": ["a", ""]}, [text("a")]),
        ({"texts": [""]}, ""),
        ({"texts": [{"name": "q", "contents": ["a", "b"]}, "c"]}, [text("a"), text("b"), text("c")]),
        ({"text": "a", "texts": [], "image": None}, "a"),
        ({"text": "", "texts": ["b"]}, "b"),
        ({"text": "a", "image": PNG_URI}, [text("a"), image(PNG_URI)]),
        ({"images": ["https://a.example/x.png", PNG_URI]}, [image("https://a.example/x.png"), image(PNG_URI)]),
        ({"images": ["http://a/1"], "image_uuids": ["one"]}, [image("http://a/1", uuid="one")]),
        ({"image_uuids": ["one", "two"]}, [image("", uuid="one"), image("", uuid="two")]),
        ({"images": [{"contents": ["http://a/1"], "uuids": ["one"]}]}, [image("http://a/1", uuid="one")]),
        ({"images": [{"uuids": ["one"]}, {"contents": ["http://a/2"]}]}, [image("", uuid="one"), image("http://a/2")]),
        ({"audio": "WAV,UklG"}, [{"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}}]),
        (
            {"audios": ["data:audio/mp3;base64,SUQz"]},
            [{"type": "input_audio", "input_audio": {"data": "SUQz", "format": "mp3"}}],
        ),
        (
            {"text": "a", "video": "https://a/v.mp4"},
            [text("a"), {"type": "video_url", "video_url": {"url": "https://a/v.mp4"}}],
        ),
    ],
)
def test_content_is_a_text_or_parts_in_a_fixed_order(row: dict[str, Any], content: Any, tmp_path: Path) -> None:
    assert content_of(tmp_path, row) == content


@pytest.mark.parametrize(
    ("kind", "data", "prefix"),
    [
        ("image", PNG, "data:image/png;base64,"),
        ("image", b"\xff\xd8\xff rest", "data:image/jpeg;base64,"),
        ("image", b"RIFF....WEBP", "data:image/webp;base64,"),
        ("video", b"....ftypisom", "data:video/mp4;base64,"),
        ("video", b"\x1a\x45\xdf\xa3", "data:video/webm;base64,"),
    ],
)
def test_a_file_goes_out_as_base64_whatever_its_name(kind: str, data: bytes, prefix: str, tmp_path: Path) -> None:
    file = tmp_path / "medium.dat"
    file.write_bytes(data)
    (part,) = content_of(tmp_path, {kind: str(file)})
    assert part == {"type": f"{kind}_url", f"{kind}_url": {"url": prefix + base64.b64encode(data).decode()}}


@pytest.mark.parametrize(("data", "form"), [(b"RIFF....WAVE", "wav"), (b"ID3", "mp3"), (b"\xff\xfb", "mp3")])
def test_a_sound_file_goes_out_with_its_format(data: bytes, form: str, tmp_path: Path) -> None:
    (tmp_path / "sound").write_bytes(data)
    (part,) = content_of(tmp_path, {"audio": str(tmp_path / "sound")})
    assert part["input_audio"] == {"data": base64.b64encode(data).decode(), "format": form}


def test_timestamps_are_a_schedule_that_begins_with_the_first(tmp_path: Path) -> None:
    rows = [{"text": "late", "timestamp": 2500}, {"text": "early", "timestamp": 1000.5}]
    workload = load(write(tmp_path, *rows, {"text": "x", "session_id": "s", "timestamp": "1200"}))
    assert workload.timed
    assert [(root, workload.sessions[root].arrival_s) for root in workload.roots] == [
        ("request_2", 0.0),
        ("s", pytest.approx(0.1995)),
        ("request_1", 1.4995),
    ]
    assert workload.notes == ("the file's first timestamp, 1.000 s, is the start of the run",)


def test_a_timestamp_here_and_there_is_no_schedule(tmp_path: Path) -> None:
    workload = load(write(tmp_path, {"text": "a", "timestamp": 5}, {"text": "b"}))
    assert not workload.timed
    (note,) = workload.notes
    assert note.startswith("1 of 2 conversations have no timestamp (the first is 'request_2')")


def test_a_name_of_the_file_is_never_given_to_another_session(tmp_path: Path) -> None:
    workload = load(write(tmp_path, {"text": "a"}, {"text": "b", "session_id": "request_1"}))
    assert workload.roots == ("_request_1", "request_1")


def test_other_keys_are_allowed_and_noted(tmp_path: Path) -> None:
    workload = load(write(tmp_path, {"text": "a", "origin": 1, "type": "single_turn"}, {"text": "a", "origin": 2}))
    assert workload.notes == ("'origin' is not used (in 2 places)",)


NO_MODALITY = "Value error, At least one modality must be provided (text, image, audio, video or their plurals)"
BAD: list[tuple[Any, ...]] = [
    ({"role": "user"}, NO_MODALITY),
    ({"text": "", "images": []}, NO_MODALITY),
    ({"text": 5}, "text: Input should be a valid string"),
    ({"texts": "a"}, "texts: Input should be a valid list"),
    ({"texts": ["a", 3]}, 'texts.1: Input should be a text or an object {"name", "contents"}, got a number'),
    ({"text": "a", "texts": ["b"]}, "Value error, text and texts cannot be set together"),
    ({"text": "a", "timestamp": 1, "delay": 2}, "Value error, timestamp and delay cannot be set together"),
    ({"text": "a", "delay": -1}, "delay: Input should be greater than or equal to 0"),
    ({"text": "a", "timestamp": "noon"}, "timestamp: Input should be a valid number, unable to parse string as a number"),
    ({"text": "a", "output_length": 0}, "output_length: Input should be greater than or equal to 1"),
    ({"text": "a", "role": []}, "role: Input should be a valid string"),
    ({"text": "a", "session_id": 7}, "session_id: Input should be a valid string"),
    ({"text": "a", "extra": []}, "extra: Input should be a valid dictionary (a JSON object), got an array"),
    (
        {"text": "a", "output_lenght": 5, "sesion_id": "s"},
        "output_lenght: is not a key of this format (did you mean 'output_length'?)",
        "sesion_id: is not a key of this format (did you mean 'session_id'?)",
    ),
    ({"text": "a", "type": "multi_turn"}, "type: Input should be 'single_turn'"),
    ({"image": "no/such.png"}, "image: no such file: 'no/such.png' (and it is neither a URL nor encoded data)"),
    ({"audio": "https://a/b.wav"}, "audio: must be a file, 'wav,BASE64', 'mp3,BASE64' or a"),
    ({"images": ["https://"]}, "images.0: is no valid URL: it needs a scheme and a host"),
    (
        {"image": PNG_URI, "image_uuids": ["a"]},
        "image_uuids: Value error, image_uuids cannot be used with the singular image field",
    ),
    (
        {"images": [PNG_URI], "image_uuids": ["a", "b"]},
        "image_uuids: Value error, image_uuids length (2) must match images length (1)",
    ),
    ({"texts": [{"content": ["a"]}]}, "texts.0.content: Extra inputs are not permitted (did you mean 'contents'?)"),
    ([1], "Input should be a valid dictionary (a JSON object), got an array"),
    ("{", "invalid JSON: Expecting property name enclosed in double quotes at column 2"),
]


@pytest.mark.parametrize(("row", "problems"), [(row, problems) for row, *problems in BAD])
def test_a_bad_row_is_refused_with_its_problems(row: Any, problems: list[str], tmp_path: Path) -> None:
    assert_refused(tmp_path, "single_turn", row, problems)


def test_all_problems_of_a_file_are_told_in_order(tmp_path: Path) -> None:
    found = problems_of(write(tmp_path, *(row for row, *_ in BAD)), "single_turn")
    assert [int(problem.split(":")[0].removeprefix("line ")) for problem in found] == sorted(
        number for number, (_, *problems) in enumerate(BAD, 1) for _ in problems
    )


def test_a_file_that_is_no_picture_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.png").write_text("no picture")
    (problem,) = problems_of(write(tmp_path, {"image": str(tmp_path / "notes.png")}))
    assert problem.endswith("is no PNG, JPEG, GIF, WebP or BMP image")
    (problem,) = problems_of(write(tmp_path, {"image": str(tmp_path)}))
    assert problem.startswith("line 1: image: cannot be read: Is a directory")

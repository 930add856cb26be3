"""/v1/files: what is uploaded is listed, given back, deleted, and expires; forms that are none are refused."""

import json
import sqlite3
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from api_errors import assert_error
from state_files import left_by_a_kill

from llmirage_server.state import files as store_module
from llmirage_server.state.files import FileStore
from llmirage_server.state.sqlite import SqliteState
from llmirage_server.state.state import MemoryState, State
from llmirage_shared.wire.errors import ApiError, state_unavailable

LINE = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {}}).encode()


def refused(response: Any, status: int, message: str = "", **expected: str) -> None:
    """An error of this status, with this in its message; param and code where they are expected."""
    error = response.json()["error"]
    assert_error(response, status, expected.get("param", error["param"]), expected.get("code", error["code"]), message)


def upload(api: Any, data: bytes = LINE, name: str = "in.jsonl", **fields: str) -> Any:
    return api.request("POST", "/v1/files", files={"file": (name, data)}, data={"purpose": "batch"} | fields)


@pytest.fixture(params=["memory", "sqlite"])
def state(request: Any, tmp_path: Path) -> State:
    return MemoryState() if request.param == "memory" else SqliteState(tmp_path / "state.db")


def test_an_upload_is_given_back_and_deleted(make_api: Callable[..., Any]) -> None:
    api = make_api()
    made = upload(api)
    file = made.json()
    assert made.status_code == 200
    assert file["expires_at"] == file["created_at"] + 30 * 86400
    assert {key: file[key] for key in ("object", "bytes", "filename", "purpose", "status")} == {
        "object": "file", "bytes": len(LINE), "filename": "in.jsonl", "purpose": "batch", "status": "processed",
    }  # fmt: skip
    path = f"/v1/files/{file['id']}"
    assert api.request("GET", path).json() == file
    content = api.request("GET", path + "/content")
    assert (content.content, content.headers["content-type"]) == (LINE, "application/octet-stream")
    assert "in.jsonl" in content.headers["content-disposition"]
    assert api.request("DELETE", path).json() == {"id": file["id"], "object": "file", "deleted": True}
    for method, of in (("GET", path), ("GET", path + "/content"), ("DELETE", path)):
        refused(api.request(method, of), 404, "No such File object", param="id")


def test_files_are_listed_newest_first_by_purpose_and_page(make_api: Callable[..., Any]) -> None:
    api = make_api()
    a, b, c = (upload(api, b"{}", name, purpose=purpose).json() for name, purpose in
               (("a", "batch"), ("b", "user_data"), ("c", "batch")))  # fmt: skip
    assert b["expires_at"] is None

    def ids(query: str) -> list[str]:
        return [file["id"] for file in api.request("GET", "/v1/files" + query).json()["data"]]

    assert ids("") == [c["id"], b["id"], a["id"]]
    assert ids("?order=asc&limit=2") == [a["id"], b["id"]]
    assert ids("?purpose=batch") == [c["id"], a["id"]]
    assert ids(f"?after={b['id']}") == [a["id"]]
    assert ids("?limit=10000&purpose=nothing") == []
    refused(api.request("GET", "/v1/files?limit=10001"), 400, "10000", param="limit")


def test_a_file_expires(make_api: Callable[..., Any]) -> None:
    api = make_api()
    fields = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    file = upload(api, **fields).json()
    assert file["expires_at"] == file["created_at"] + 3600
    api.app.files.now_s = lambda: file["expires_at"]
    assert api.request("GET", f"/v1/files/{file['id']}").status_code == 404
    assert api.request("GET", "/v1/files").json()["data"] == []
    assert api.app.files.bytes_kept() == 0


@pytest.mark.parametrize("purpose", ["assistants", "vision", "user_data"])
def test_what_the_api_does_not_give_back(make_api: Callable[..., Any], purpose: str) -> None:
    api = make_api()
    file = upload(api, b"secret", purpose=purpose).json()
    answer = api.request("GET", f"/v1/files/{file['id']}/content")
    refused(answer, 400, f"Not allowed to download files of purpose: {purpose}")
    assert api.app.files.read(file["id"]).data == b"secret"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"purpose": "other"}, "purpose"),
        ({"expires_after[anchor]": "created_at"}, "expires_after.seconds"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "1"}, "expires_after.seconds"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "soon"}, "expires_after.seconds"),
        ({"expires_after": "x", "expires_after[anchor]": "created_at"}, "expires_after.seconds"),
        ({"expires_after": "x"}, "expires_after"),
        ({"colour": "blue"}, "colour"),
    ],
)
def test_a_wrong_field_is_named(api: Any, fields: dict[str, str], param: str) -> None:
    refused(upload(api, **fields), 400, param=param)


def test_what_is_missing_is_named(api: Any) -> None:
    refused(api.request("POST", "/v1/files", files={"file": ("a", b"{}")}), 400, param="purpose")
    refused(api.request("POST", "/v1/files", files={"other": ("a", b"")}, data={"purpose": "batch"}), 400, param="other")
    form = {"content-type": "multipart/form-data; boundary=x"}
    body = b'--x\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n'
    none = body % (b"purpose", b"batch") + b"--x--\r\n"
    refused(api.request("POST", "/v1/files", content=none, headers=form), 400, param="file")
    text = body % (b"purpose", b"batch") + body % (b"file", b"{}") + b"--x--\r\n"
    refused(api.request("POST", "/v1/files", content=text, headers=form), 400, param="file")


@pytest.mark.parametrize("data", [b"", b"notes", b"{malformed", b"[1]"])
def test_a_batch_file_begins_with_a_json_object(api: Any, data: bytes) -> None:
    refused(upload(api, data), 400, "Invalid file format")
    assert upload(api, data, purpose="user_data").status_code == 200


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\a\\b.jsonl", "b.jsonl"),
        ('"quoted".jsonl', '"quoted".jsonl'),
        ("ä\U0001f600.jsonl", None),
    ],
)
def test_names_lose_their_folders(api: Any, name: str, kept: str | None) -> None:
    file = upload(api, name=name).json()
    assert file["filename"].replace("%22", '"') == (kept or name)
    assert api.request("GET", f"/v1/files/{file['id']}/content").content == LINE


def test_a_name_has_a_length(api: Any) -> None:
    refused(upload(api, name="x" * 256), 400, param="file.filename")
    refused(upload(api, name="x" * 100_000), 400, "headers of a part")


FORM = "multipart/form-data; boundary=x"
FIELD = b'Content-Disposition: form-data; name="purpose"\r\n\r\nbatch'


@pytest.mark.parametrize(
    ("content_type", "body", "said"),
    [
        ("multipart/form-data", b"--x--", "no boundary"),
        (f"multipart/form-data; boundary={'x' * 71}", b"--x--", "no boundary"),
        (FORM, b"", "does not occur"),
        (FORM, b"--y--", "does not occur"),
        (FORM, b"--x", "line break"),
        (FORM, b"--x\r\n", "headers of a part"),
        (FORM, b"--x\r\n" + FIELD, "no end"),
        (FORM, b"--x\r\n\r\n\r\nbatch\r\n--x--", "no name"),
        (FORM, b"--x\r\nContent-Disposition: form-data; name=\r\n\r\nbatch\r\n--x--", "Missing required parameter"),
        (FORM, (b"--x\r\n" + FIELD + b"\r\n") * 65 + b"--x--", "more than 64 parts"),
        (FORM, b"--x\r\nX: " + b"y" * 9000 + b"\r\n\r\nbatch\r\n--x--", "headers of a part"),
    ],
)
def test_a_form_that_is_none(api: Any, content_type: str, body: bytes, said: str) -> None:
    answer = api.request("POST", "/v1/files", content=body, headers={"content-type": content_type})
    refused(answer, 400, said)


def test_json_is_no_form(api: Any) -> None:
    refused(api.post("/v1/files", {"purpose": "batch"}), 415, "multipart/form-data")


def test_the_end_of_a_part_is_a_whole_boundary(make_api: Callable[..., Any]) -> None:
    api = make_api()
    data = b'{"a": 1}\n--not the boundary\r\n-- nor this\r\n'
    assert api.app.files.read(upload(api, data).json()["id"]).data == data


def test_too_much_is_refused(make_api: Callable[..., Any]) -> None:
    api = make_api(files_mib=1)
    data = b"{}\n" + b"x" * 500_000
    ids = [upload(api, data).json()["id"] for _ in range(2)]
    refused(upload(api, data), 400, "files_mib", code="storage_limit_exceeded")
    api.request("DELETE", f"/v1/files/{ids[0]}")
    assert upload(api, data).status_code == 200
    assert 'llmirage:held_bytes{holder="files"} 100' in api.request("GET", "/metrics").text


def test_a_body_is_bounded(make_api: Callable[..., Any]) -> None:
    refused(upload(make_api(max_body_mib=1), b"{}\n" + b"x" * (1 << 20)), 413)


def test_too_many_files_are_refused(state: State, monkeypatch: pytest.MonkeyPatch, runner: Any) -> None:
    monkeypatch.setattr(store_module, "MOST_FILES", 3)
    files = FileStore(state)
    for _ in range(3):
        runner.run(files.add("a", "batch", memoryview(b""), None))
    with pytest.raises(ApiError, match="3 files"):
        runner.run(files.add("a", "batch", memoryview(b""), None))


def test_files_need_the_key(make_api: Callable[..., Any]) -> None:
    api = make_api(api_key=("secret",))
    refused(upload(api), 401)
    refused(api.request("GET", "/v1/files"), 401)


def test_every_byte_is_counted_once(state: State, runner: Any) -> None:
    files = FileStore(state)
    ids = [runner.run(files.add("a", "batch", memoryview(bytes(size)), None))["id"] for size in (0, 10, 3 << 20)]
    assert 3 << 20 < files.bytes_kept() < (3 << 20) + 10_000
    for file_id in ids:
        runner.run(files.delete(file_id))
    assert (files.bytes_kept(), files.count()) == (0, 0)


def test_files_take_no_memory(state: State, runner: Any) -> None:
    files = FileStore(state)
    tracemalloc.start()
    try:
        for _ in range(4):
            runner.run(files.add("a", "batch", memoryview(bytes(2 << 20)), None))
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_file_outlives_the_server_and_its_deletion_too(tmp_path: Path, runner: Any) -> None:
    data = bytes(range(256)) * 4000
    first = FileStore(SqliteState(tmp_path / "state.db"))
    kept, gone = (runner.run(first.add("a", "batch", memoryview(data), None)) for _ in range(2))
    runner.run(first.delete(gone["id"]))
    unfinished = first.create("b", "batch_output")
    first.append(unfinished, b"half")
    again = FileStore(SqliteState(left_by_a_kill(tmp_path / "state.db")))
    assert again.all() == [kept]
    assert again.read(kept["id"]).data == data
    assert again.bytes_kept() == first.bytes_kept()
    runner.run(again.forget_unfinished(set()))
    assert again.count() == 1


def test_an_upload_in_progress_is_not_forgotten(state: State, runner: Any) -> None:
    files = FileStore(state)
    begun = files.create("a", "batch")
    runner.run(files.forget_unfinished(set()))
    files.append(begun, b"b")
    assert files.publish(begun, None)["bytes"] == 1


def test_what_is_read_is_read_to_its_end(state: State, runner: Any) -> None:
    files = FileStore(state)

    async def read() -> bytes:
        file = await files.add("a", "batch", memoryview(bytes(1 << 20)), None)
        parts = []
        async for part in files.streamed(file["id"]):
            if not parts:
                await files.delete(file["id"])
            parts.append(part)
        return b"".join(parts)

    assert runner.run(read()) == bytes(1 << 20)
    assert files.all() == []
    runner.run(files.forget_expired())
    assert files.bytes_kept() == 0


def test_objects_do_not_give_way_to_files(tmp_path: Path, runner: Any) -> None:
    state = SqliteState(tmp_path / "state.db", most_bytes=1 << 20)
    state.put("response", "a", {"n": 1})
    runner.run(FileStore(state).add("a", "batch", memoryview(bytes(8 << 20)), None))
    for number in range(200):
        state.put("item", str(number), {})
    assert state.get("response", "a") == {"n": 1}
    assert 0 < state.bytes_kept() < 1 << 20


def test_an_upload_whose_deletion_fails_too_goes_later(runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    state = MemoryState()
    contents, files = state.contents, FileStore(state)

    def full(*_: Any) -> Any:
        raise state_unavailable("database or disk is full")

    with monkeypatch.context() as disk:
        disk.setattr(contents, "append", full)
        disk.setattr(contents, "delete", full)
        with pytest.raises(ApiError, match="disk is full"):
            runner.run(files.add("a", "batch", memoryview(bytes(1000)), None))
    assert files.all() == []
    runner.run(files.add("b", "batch", memoryview(bytes(1000)), None))
    assert (files.count(), [file["filename"] for file in files.all()]) == (1, ["b"])


def test_a_full_disk_is_a_503_and_leaves_nothing(make_api: Callable[..., Any], tmp_path: Path) -> None:
    api = make_api(state=str(tmp_path / "state.db"))
    database = api.app.store._db
    database.execute("PRAGMA max_page_count = 100")
    refused(upload(api, b"{}\n" + bytes(1 << 20)), 503, code="state_unavailable")
    database.execute("PRAGMA max_page_count = 100000")
    assert api.request("GET", "/v1/files").json()["data"] == []
    assert upload(api, b"{}\n" + bytes(1 << 20)).status_code == 200
    with sqlite3.connect(tmp_path / "state.db") as again:
        assert again.execute("SELECT count(*) FROM files").fetchone() == (1,)

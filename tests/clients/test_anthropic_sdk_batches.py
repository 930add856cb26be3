"""Message batches and files of the official anthropic package against the server."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from sdks import anthropic, openai
from served import serving

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
BETA = {"anthropic-beta": "files-api-2025-04-14"}


@pytest.fixture(scope="module")
def sdk(base_url: str) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=base_url.removesuffix("/v1"), api_key="none", max_retries=0) as client:
        yield client


def request(name: str, text: str = "Hi", **more: Any) -> Any:
    params = {"model": MODEL, "max_tokens": 20, "messages": [{"role": "user", "content": text}], **more}
    return {"custom_id": name, "params": params}


def ended(sdk: Any, batch: Any) -> Any:
    for _ in range(600):
        if (batch := sdk.messages.batches.retrieve(batch.id)).processing_status == "ended":
            return batch
        assert batch.results_url is None
        time.sleep(0.05)
    pytest.fail("the batch does not end")


# --- batches ------------------------------------------------------------------------------------------------------------


def test_a_batch_answers_each_request(sdk: Any) -> None:
    tool = {"type": "web_search_20250305", "name": "web_search"}
    wanted = [
        request("a"), request("b", max_tokens=100_000), request("c", model="none"), request("d", messages=[]),
        request("e", "Search the web for tea", max_tokens=300, tools=[tool]),
    ]  # fmt: skip
    batch = sdk.messages.batches.create(requests=wanted)
    assert (batch.type, batch.processing_status) == ("message_batch", "in_progress")
    assert batch.request_counts.to_dict() == {
        "processing": 5, "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0,
    }  # fmt: skip
    batch = ended(sdk, batch)
    assert batch.request_counts.to_dict() == {
        "processing": 0, "succeeded": 2, "errored": 3, "canceled": 0, "expired": 0,
    }  # fmt: skip
    assert batch.ended_at >= batch.created_at
    results = {entry.custom_id: entry.result for entry in sdk.messages.batches.results(batch.id)}
    assert {name: result.type for name, result in results.items()} == {
        "a": "succeeded", "b": "errored", "c": "errored", "d": "errored", "e": "succeeded",
    }  # fmt: skip
    alone = sdk.messages.create(**wanted[0]["params"])
    assert results["a"].message.content[0].text == alone.content[0].text
    assert results["e"].message.content[1].type == "web_search_tool_result"
    assert results["b"].error.error.message.startswith("input length and `max_tokens` exceed context limit: ")
    assert results["c"].error.error.type == "not_found_error"
    assert results["d"].error.error.type == "invalid_request_error"


def test_batches_are_listed_and_deleted(sdk: Any) -> None:
    batches = [ended(sdk, sdk.messages.batches.create(requests=[request("a")])) for _ in range(3)]
    ids = [batch.id for batch in reversed(batches)]
    assert [batch.id for batch in sdk.messages.batches.list(limit=2)][:3] == ids  # page by page
    page = sdk.messages.batches.list(limit=1, after_id=ids[0])
    assert ([batch.id for batch in page.data], page.first_id, page.has_more) == (ids[1:2], ids[1], True)
    page = sdk.messages.batches.list(limit=1, before_id=ids[2])
    assert [batch.id for batch in page.data] == [ids[1]]
    assert sdk.messages.batches.delete(ids[0]).to_dict() == {"id": ids[0], "type": "message_batch_deleted"}
    for call in (sdk.messages.batches.retrieve, sdk.messages.batches.cancel, sdk.messages.batches.delete):
        with pytest.raises(anthropic.NotFoundError):
            call(ids[0])


def test_the_batches_of_the_two_apis_are_apart(sdk: Any, base_url: str) -> None:
    batch = ended(sdk, sdk.messages.batches.create(requests=[request("a")]))
    other = openai.OpenAI(base_url=base_url, api_key="none", max_retries=0)
    assert batch.id not in [each.id for each in other.batches.list()]
    with pytest.raises(openai.NotFoundError):
        other.batches.retrieve(batch.id)
    assert not [file for file in other.files.list() if file.filename.startswith((batch.id, "requests"))]


@pytest.mark.parametrize(
    ("requests", "says"),
    [
        ([], "requests: List should have at least 1 item"),
        ([request("a"), request("a")], r"requests\.1\.custom_id: 'a' is a duplicate"),
        ([request("no spaces")], r"requests\.0\.custom_id: String should match pattern"),
        ([{"custom_id": "a"}], r"requests\.0\.params: Field required"),
        ([request("a", stream=True)], r"requests\.0\.params\.stream"),
    ],
)
def test_a_wrong_batch_is_refused(sdk: Any, requests: Any, says: str) -> None:
    with pytest.raises(anthropic.BadRequestError, match=says):
        sdk.messages.batches.create(requests=requests)


def test_a_batch_is_cancelled() -> None:
    with serving("--ttft", "100", "--itl", "20") as url:
        sdk = anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key="none", max_retries=0)
        batch = sdk.messages.batches.create(requests=[request(f"r{number}") for number in range(150)])
        with pytest.raises(anthropic.BadRequestError, match="Cancel it first"):
            sdk.messages.batches.delete(batch.id)
        cancelled = sdk.messages.batches.cancel(batch.id)
        assert cancelled.processing_status == "canceling"
        assert cancelled.cancel_initiated_at is not None
        counts = ended(sdk, batch).request_counts
        assert counts.canceled > 0
        assert (counts.succeeded + counts.canceled, counts.errored, counts.processing) == (150, 0, 0)
        types = [entry.result.type for entry in sdk.messages.batches.results(batch.id)]
        assert (types.count("canceled"), len(types)) == (counts.canceled, 150)
        with pytest.raises(anthropic.BadRequestError, match="already ended"):
            sdk.messages.batches.cancel(batch.id)


def test_a_beta_of_a_batch_is_that_of_its_requests(sdk: Any) -> None:
    tool = {"type": "computer_20250124", "name": "computer", "display_width_px": 1, "display_height_px": 1}
    wanted = [request("a", tools=[tool])]
    with_beta = sdk.beta.messages.batches.create(requests=wanted, betas=["computer-use-2025-01-24"])
    assert ended(sdk, with_beta).request_counts.succeeded == 1
    assert ended(sdk, sdk.messages.batches.create(requests=wanted)).request_counts.errored == 1


def test_results_outlive_the_server(tmp_path: Any) -> None:
    flags = ("--ttft", "1", "--itl", "0", "--state", str(tmp_path / "state.db"))
    with serving(*flags) as url:
        sdk = anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key="none", max_retries=0)
        batch = ended(sdk, sdk.messages.batches.create(requests=[request("a"), request("b", messages=[])]))
    with serving(*flags) as url:
        sdk = anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key="none", max_retries=0)
        again = sdk.messages.batches.retrieve(batch.id)
        assert again.request_counts == batch.request_counts
        assert sorted(entry.result.type for entry in sdk.messages.batches.results(batch.id)) == ["errored", "succeeded"]


# --- files --------------------------------------------------------------------------------------------------------------


def test_a_file_is_stored_and_named_in_messages(sdk: Any) -> None:
    file = sdk.files.upload(file=("notes.txt", b"The password is swordfish. " * 20, "text/plain"))
    assert (file.type, file.filename, file.mime_type, file.size_bytes) == ("file", "notes.txt", "text/plain", 540)
    assert file.downloadable is False
    assert sdk.beta.files.retrieve_metadata(file.id).id == file.id
    source = {"type": "file", "file_id": file.id}

    def tokens(content: Any) -> int:
        messages = [{"role": "user", "content": content}]
        return int(sdk.messages.count_tokens(model=MODEL, messages=messages).input_tokens)

    question = {"type": "text", "text": "What is it?"}
    assert tokens([{"type": "document", "source": source}, question]) > tokens([question]) + 80
    assert tokens([{"type": "image", "source": source}, question]) > tokens([question])
    with pytest.raises(anthropic.BadRequestError, match="not downloadable"):
        sdk.files.download(file.id)
    assert sdk.files.delete(file.id).to_dict() == {"id": file.id, "type": "file_deleted"}
    for call in (sdk.beta.files.retrieve_metadata, sdk.files.download, sdk.files.delete):
        with pytest.raises(anthropic.NotFoundError, match=f"File not found: {file.id}"):
            call(file.id)
    with pytest.raises(anthropic.NotFoundError, match=f"File not found: {file.id}"):
        tokens([{"type": "document", "source": source}])


def test_files_are_listed_page_by_page(sdk: Any, base_url: str) -> None:
    ids = [sdk.files.upload(file=(f"{number}.txt", b"x", "text/plain")).id for number in range(3)][::-1]
    assert [file.id for file in sdk.files.list(limit=2)][:3] == ids
    page = sdk.get("/v1/files", cast_to=object, options={"params": {"limit": 1, "after_id": ids[0]}})
    assert (page["first_id"], page["last_id"], page["has_more"]) == (ids[1], ids[1], True)
    page = sdk.get("/v1/files", cast_to=object, options={"params": {"limit": 5, "before_id": ids[1]}})
    assert ([file["id"] for file in page["data"]], page["has_more"]) == ([ids[0]], False)
    assert [file.id for file in sdk.files.list(ids=[ids[2], "file_none"])] == [ids[2]]
    other = openai.OpenAI(base_url=base_url, api_key="none", max_retries=0)
    assert not {file.id for file in other.files.list()} & set(ids)
    theirs = other.files.create(file=("o.txt", b"x"), purpose="user_data")
    assert theirs.id not in [file.id for file in sdk.files.list()]
    with pytest.raises(anthropic.NotFoundError):
        sdk.files.delete(theirs.id)


def test_what_a_tool_left_can_be_downloaded(sdk: Any) -> None:
    tool = {"type": "code_execution_20250522", "name": "code_execution"}
    messages = [{"role": "user", "content": "Run Python code: `open('a.csv', 'w').write('1')`"}]
    message = sdk.messages.create(model=MODEL, max_tokens=300, messages=messages, tools=[tool])
    [output] = message.content[1].content.content
    assert sdk.beta.files.retrieve_metadata(output.file_id).downloadable is True
    assert sdk.files.download(output.file_id).read().startswith(b"(simulated)")


@pytest.mark.parametrize("name", ["", "a" * 256 + ".txt", "a<b.txt", "a?.txt"])
def test_names_of_files(sdk: Any, name: str) -> None:
    if not name:
        assert sdk.files.upload(file=(name, b"x", "text/plain")).filename == "unnamed.txt"
        return
    with pytest.raises(anthropic.BadRequestError, match="Invalid filename"):
        sdk.files.upload(file=(name, b"x", "text/plain"))

"""Files cost the tokens of their texts in all three APIs."""

import base64
from typing import Any

import pytest

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
TEXT = "The quick brown fox jumps over the lazy dog. " * 40
DATA = base64.b64encode(TEXT.encode()).decode()
PDF = base64.b64encode(b"%PDF-1.4 /Type /Page /Type /Page ").decode()


def chat_tokens(api: Any, *parts: Any) -> int:
    body = {
        "model": MODEL,
        "max_tokens": 1,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "A"}, *parts]}],
    }
    return int(api.post("/v1/chat/completions", body).json()["usage"]["prompt_tokens"])


def response_tokens(api: Any, *parts: Any) -> int:
    content = [{"type": "input_text", "text": "A"}, *parts]
    body = {"model": MODEL, "input": [{"role": "user", "content": content}], "max_output_tokens": 16}
    return int(api.post("/v1/responses", body).json()["usage"]["input_tokens"])


def message_tokens(api: Any, *blocks: Any) -> int:
    content = [{"type": "text", "text": "A"}, *blocks]
    answer = api.post("/v1/messages/count_tokens", {"model": MODEL, "messages": [{"role": "user", "content": content}]})
    assert answer.status_code == 200, answer.text
    return int(answer.json()["input_tokens"])


def base(media_type: str, data: str) -> dict[str, Any]:
    return {"type": "base64", "media_type": media_type, "data": data}


@pytest.fixture
def tokens(api: Any) -> int:
    return int(api.post("/tokenize", {"prompt": TEXT}).json()["count"])


def test_chat_and_responses(api: Any, tokens: int) -> None:
    plain = chat_tokens(api)
    given = {"type": "file", "file": {"filename": "fox.txt", "file_data": f"data:text/plain;base64,{DATA}"}}
    assert chat_tokens(api, given) == pytest.approx(plain + tokens, abs=3)
    pages = {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF}"}}
    assert chat_tokens(api, pages) == plain + 3_000
    plain = response_tokens(api)
    given = {"type": "input_file", "filename": "fox.txt", "file_data": f"data:text/plain;base64,{DATA}"}
    assert response_tokens(api, given) == pytest.approx(plain + tokens, abs=3)


def test_documents_and_search_results_of_messages(api: Any, tokens: int) -> None:
    plain = message_tokens(api)
    for source in (
        {"type": "text", "media_type": "text/plain", "data": TEXT},
        {"type": "content", "content": [{"type": "text", "text": TEXT}]},
        {"type": "content", "content": TEXT},
        base("text/plain", DATA),
    ):
        assert message_tokens(api, {"type": "document", "source": source}) == pytest.approx(plain + tokens, abs=4)
    assert message_tokens(api, {"type": "document", "source": base("application/pdf", PDF)}) == pytest.approx(
        plain + 3_000, abs=1
    )
    titled = {"type": "document", "title": TEXT, "source": {"type": "text", "media_type": "text/plain", "data": "B"}}
    assert message_tokens(api, titled) == pytest.approx(plain + tokens, abs=5)
    found = {"type": "search_result", "source": "https://a.test", "title": "T", "content": [{"type": "text", "text": TEXT}]}
    assert message_tokens(api, found) == pytest.approx(plain + tokens, abs=15)


def test_an_image_of_messages_costs_by_its_size(api: Any) -> None:
    plain = message_tokens(api)
    small = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"\0" * 8 + b"\0\0\0\x10\0\0\0\x10").decode()
    assert message_tokens(api, {"type": "image", "source": base("image/png", small)}) == pytest.approx(plain + 255, abs=1)


def uploaded(api: Any, data: bytes) -> str:
    answer = api.request("POST", "/v1/files", data={"purpose": "user_data"}, files={"file": ("a", data)})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def test_a_stored_file_costs_its_text(api: Any, tokens: int) -> None:
    file_id = uploaded(api, TEXT.encode())
    plain = chat_tokens(api)
    assert chat_tokens(api, {"type": "file", "file": {"file_id": file_id}}) == pytest.approx(plain + tokens, abs=3)
    plain = response_tokens(api)
    assert response_tokens(api, {"type": "input_file", "file_id": file_id}) == pytest.approx(plain + tokens, abs=3)
    plain = message_tokens(api)
    document = {"type": "document", "source": {"type": "file", "file_id": file_id}}
    assert message_tokens(api, document) == pytest.approx(plain + tokens, abs=3)
    pages = {"type": "file", "file": {"file_id": uploaded(api, base64.b64decode(PDF))}}
    assert chat_tokens(api, pages) == chat_tokens(api) + 3_000


def test_a_stored_image_costs_by_its_size(api: Any) -> None:
    small = uploaded(api, b"\x89PNG\r\n\x1a\n" + b"\0" * 8 + b"\0\0\0\x10\0\0\0\x10")
    plain = response_tokens(api)
    assert response_tokens(api, {"type": "input_image", "file_id": small}) == pytest.approx(plain + 255, abs=1)


def test_a_file_that_is_not_stored_is_refused_where_the_api_is_strict(api: Any, make_api: Any) -> None:
    part = {"type": "file", "file": {"file_id": "file-none"}}
    message = {"role": "user", "content": [{"type": "text", "text": "A"}, part]}
    refused = api.post("/v1/chat/completions", {"model": MODEL, "max_tokens": 1, "messages": [message]})
    assert refused.status_code == 404
    assert refused.json()["error"]["message"] == "No such File object: file-none"
    assert refused.json()["error"]["param"] == "file_id"
    lenient = make_api(lenient=True)
    assert chat_tokens(lenient, part) == chat_tokens(lenient) + 1

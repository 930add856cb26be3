"""Lines of a batch's input file."""

from typing import Any

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
CHAT = "/v1/chat/completions"


def line(custom_id: str, url: str = CHAT, **body: Any) -> dict[str, Any]:
    said = {"messages": [{"role": "user", "content": f"Say {custom_id}"}], "max_tokens": 3} if url == CHAT else {}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": MODEL} | said | body}

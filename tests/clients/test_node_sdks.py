"""openai-node and the AI SDK against the server; skipped where node or their packages are missing.

The packages: `npm install --prefix tests/clients/node`, or a folder with node_modules named by LLMIRAGE_NODE_CLIENTS.
"""

from pathlib import Path

from node import run


def test_openai_node(base_url: str, tmp_path: Path) -> None:
    loop = {"asked": ["Paris"], "roles": ["user", "assistant", "tool", "assistant"]}
    assert run("openai_sdk.mjs", "openai", base_url, tmp_path) == {
        "create": ["stop", True],
        "stream": [True, True],
        "parse": True,
        "runTools": loop,
        "runToolsStreamed": loop,
        "response": True,
        "responseParse": True,
        "responseStream": [True, ['{"city":"Oslo"}']],
        "background": "completed",
        "conversation": ["user", "user", "assistant"],
        "embeddings": True,
        "models": ["Qwen/Qwen3-30B-A3B-Instruct-2507"],
        "completions": 4,
        "error": ["NotFoundError", 404, "model_not_found", True],
        "abort": 3,
    }


def test_the_ai_sdk(base_url: str, tmp_path: Path) -> None:
    expected = {
        "text": [True, True, "stop"],
        "tools": [2, ["San Francisco"], True],
        "required": 1,
        "stream": [True, True, 0, 2],
        "object": True,
        "array": True,
        "choice": True,
        "streamedObject": [True, True],
        "error": ["AI_APICallError", 404],
        "abort": 3,
    }
    assert run("ai_sdk.mjs", "ai", base_url, tmp_path) == {
        **{f"{api} {check}": result for api in ("chat", "responses") for check, result in expected.items()},
        "embed": 2,
    }

"""Batches through the API in this process: made, and waited for."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from batch_lines import CHAT


class BatchApi:
    """An API and the batches in it."""

    def __init__(self, api: Any, runner: asyncio.Runner) -> None:
        self.api = api
        self.runner = runner

    def upload(self, lines: Sequence[Any]) -> str:
        texts = [each if isinstance(each, str) else json.dumps(each) for each in lines]
        files = {"file": ("in.jsonl", "\n".join(texts).encode())}
        made = self.api.request("POST", "/v1/files", files=files, data={"purpose": "batch"})
        return str(made.json()["id"])

    def create(self, lines: Sequence[Any], url: str = CHAT, **fields: Any) -> dict[str, Any]:
        file_id = fields.pop("input_file_id", None) or self.upload(lines)
        body = {"input_file_id": file_id, "endpoint": url, "completion_window": "24h"} | fields
        made = self.api.post("/v1/batches", body)
        assert made.status_code == 200, made.text
        return dict(made.json())

    def get(self, batch: Any) -> dict[str, Any]:
        return dict(self.api.request("GET", f"/v1/batches/{batch['id']}").json())

    def wait(self, batch: Any, status: str = "completed", seconds: float = 20.0) -> dict[str, Any]:
        """The batch once it has this status."""
        for _ in range(int(seconds / 0.01)):
            if (found := self.get(batch))["status"] == status:
                return found
            assert found["status"] not in ("completed", "failed", "expired", "cancelled"), found
            self.runner.run(asyncio.sleep(0.01))
        raise AssertionError(found)

    def results(self, file_id: str | None) -> dict[str, Any]:
        """The lines of an output file by custom_id; none without a file."""
        if file_id is None:
            return {}
        lines = self.api.request("GET", f"/v1/files/{file_id}/content").text.splitlines()
        return {each["custom_id"]: each for each in map(json.loads, lines)}

    def errors(self, lines: Sequence[Any], url: str = CHAT) -> list[tuple[str, str | None, int | None]]:
        """What is wrong with a file: codes, params, lines."""
        failed = self.wait(self.create(lines, url), "failed")
        return [(each["code"], each["param"], each["line"]) for each in failed["errors"]["data"]]


@pytest.fixture
def batches(make_api: Callable[..., Any], runner: asyncio.Runner) -> Callable[..., BatchApi]:
    return lambda **settings: BatchApi(make_api(**settings), runner)

"""Pytest within pytest."""

import asyncio

import httpx
import pytest
from pytest_project import Project

import llmirage


@pytest.fixture(scope="module")
def loaded() -> None:
    """Modules that load only once in a process are loaded before pytest runs within pytest, which forgets what it loads."""

    async def ask() -> None:
        async with server.async_openai() as client:
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hello"}])

    with llmirage.Server(port=0, virtual_time=True) as server:
        asyncio.run(ask())
        assert server.openai().models.list().data
        assert httpx.get(f"{server.base_url}/models").status_code == 200  # httpx keeps the errors of the httpcore it met


@pytest.fixture
def project(loaded: None, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    for name in ("PYTEST_XDIST_WORKER", "LLMIRAGE_UPSTREAM_KEY"):
        monkeypatch.delenv(name, raising=False)
    return Project(pytester)

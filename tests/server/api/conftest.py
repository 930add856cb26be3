"""An API that replies by a script."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from llmirage_server.app import create_app
from llmirage_server.config import ClusterConfig


@pytest.fixture
def scripted(make_api: Callable[..., Any]) -> Callable[..., Any]:
    """An API whose script has these rules."""

    def make(*rules: Any, settings: Any = (), **more: Any) -> Any:
        api = make_api()
        given = {"ttft_ms": 0.0, "itl_ms": 0.0, **dict(settings)}
        api.app = create_app(ClusterConfig(**given), script={"rules": list(rules), **more})
        return api

    return make

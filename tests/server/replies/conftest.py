"""Replies of the embedded tokenizer."""

from __future__ import annotations

import pytest

from llmirage_server.replies.choose import make_reply_source
from llmirage_server.replies.compose import ComposedReplies
from llmirage_shared.tokenizer_loader import embedded


@pytest.fixture(scope="module")
def source() -> ComposedReplies:
    return ComposedReplies(embedded(), make_reply_source("prose", embedded()))

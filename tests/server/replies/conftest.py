"""Replies of the embedded tokenizer."""

import pytest

from llmirage_server.replies.compose import ComposedReplies, ProseReplies
from llmirage_shared.tokenizer_loader import embedded


@pytest.fixture(scope="module")
def source() -> ComposedReplies:
    return ComposedReplies(embedded(), ProseReplies(embedded()))

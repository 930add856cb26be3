"""Chat messages in few words."""

from __future__ import annotations


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}

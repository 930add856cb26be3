"""Chat messages in few words."""


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}

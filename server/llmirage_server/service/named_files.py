"""Files that a prompt names by their ids: what is stored of them stands in the prompt as if it had come with the request."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llmirage_server.http.exchange import LARGE_BYTES, HttpExchange
from llmirage_server.state.files import FileStore
from llmirage_shared.wire.errors import ApiError

_IMAGE = "file:"  # how an image that is named by its id is written in chat's form
_IMAGE_BYTES = 300_000  # that are looked at for its size

Message = Mapping[str, Any]


async def with_files(
    exchange: HttpExchange, files: FileStore, messages: Sequence[Message], strict: bool
) -> Sequence[Message]:
    """Return the messages with the contents of the files that they name.

    strict: raises ApiError (404) for one that is unknown.
    """
    named = await exchange.apart(lambda: {file_id for message in messages for file_id in _named(message)})
    contents: dict[str, bytes] = {}
    for file_id in sorted(named):
        try:
            files.object(file_id)
        except ApiError as error:
            if strict:
                raise ApiError(error.message, status=error.status, param="file_id") from None
            continue
        contents[file_id] = b"".join([part async for part in files.streamed(file_id)])
    if not contents:
        return messages
    exchange.is_large |= sum(map(len, contents.values())) > LARGE_BYTES
    return await exchange.apart(lambda: [_filled(message, contents) for message in messages])


def _named(message: Message) -> Iterator[str]:
    content = message.get("content")
    for part in content if isinstance(content, list) else ():
        if (file_id := _file_id(part)) is not None:
            yield file_id


def _file_id(part: Any) -> str | None:
    """Return the id by which a part of a message names its file, None if the file is in it or somewhere else."""
    if not isinstance(part, Mapping):
        return None
    file, image = part.get("file"), part.get("image_url")
    if isinstance(file, Mapping) and not file.get("file_data"):
        return file.get("file_id")
    url = image.get("url") if isinstance(image, Mapping) else None
    return url.removeprefix(_IMAGE) if isinstance(url, str) and url.startswith(_IMAGE) else None


def _filled(message: Message, contents: Mapping[str, bytes]) -> Message:
    if not any(file_id in contents for file_id in _named(message)):
        return message
    return {**message, "content": [_filled_part(part, contents) for part in message["content"]]}


def _filled_part(part: Any, contents: Mapping[str, bytes]) -> Any:
    data = contents.get(_file_id(part) or "")
    if data is None:
        return part
    if "file" in part:
        return {**part, "file": {**part["file"], "file_data": data}}
    start = base64.b64encode(data[:_IMAGE_BYTES]).decode()
    return {**part, "image_url": {**part["image_url"], "url": f"data:image/png;base64,{start}"}}

"""Prompts of requests: what they are made of, what they must fit in, and the files that they name by their ids."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from llmirage_server.http.exchange import LARGE_BYTES, HttpExchange
from llmirage_server.state.files import FileStore
from llmirage_shared.wire import errors
from llmirage_shared.wire.errors import ApiError

MOST_CHOICES = 1_024  # prompts times choices of each, in one request
MOST_COUNTED = 300_000  # tokens of a text that is only counted: as many take a second or two to find


@dataclass(slots=True)
class EncodedPrompt:
    """One prompt of a request. ids: int32, shape (prompt_tokens,). user_text: what the reply answers."""

    ids: npt.NDArray[np.int32]
    user_text: str
    echo: str = ""  # the prompt's text, if the response repeats it


class ContextWindow(NamedTuple):
    """The limit of a prompt: the tokens of the context window, and the field that holds the prompt.

    counted_to: up to how many tokens a longer prompt is counted, for an error that says how long it is.
    """

    tokens: int
    param: str
    counted_to: int = 0

    def exceeded(self, found: int) -> ApiError:
        """Return the refusal of a prompt of at least `found` tokens, which was not tokenized to its end."""
        return errors.context_length_exceeded(self.tokens, found, None, self.param, counted=False)


class CountedTokens(ContextWindow):
    """The limit of a text whose tokens are only counted or shown: more than engines count at once."""

    @classmethod
    def of(cls, max_model_len: int, param: str) -> CountedTokens:
        return cls(max(max_model_len, MOST_COUNTED), param)

    def exceeded(self, found: int) -> ApiError:
        problem = f"Invalid '{self.param}': expected at most {self.tokens} tokens, but got at least {found} instead."
        return ApiError(problem, param=self.param, code="context_length_exceeded")


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
        whole = io.BytesIO()  # is not copied at the end
        async for part in files.streamed(file_id):
            whole.write(part)
        contents[file_id] = whole.getvalue()
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

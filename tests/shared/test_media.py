"""Images and sounds in tokens."""

import base64
import struct

import pytest

from llmirage_shared.media import image_size, image_tokens, part_tokens
from llmirage_shared.prompt_encoder import EmbeddedTemplate, PromptEncoder
from llmirage_shared.tokenizer_loader import embedded

PNG = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 1024, 768)
GIF = b"GIF89a" + struct.pack("<HH", 320, 200)
JPEG = b"\xff\xd8\xff\xe0\x00\x04ab\xff\xc0\x00\x11\x08" + struct.pack(">HH", 600, 800) + bytes(20)
WEBP = b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + (511).to_bytes(3, "little") + (255).to_bytes(3, "little")


def url(data: bytes) -> str:
    return "data:image/x;base64," + base64.b64encode(data).decode()


@pytest.mark.parametrize(
    ("width", "height", "detail", "tokens"),
    [
        (1024, 1024, "high", 765),  # the documentation's examples
        (2048, 4096, "high", 1105),
        (4096, 8192, "low", 85),
        (512, 512, "auto", 255),
        (1, 1, "high", 255),
    ],
)
def test_tiles_of_an_image(width: int, height: int, detail: str, tokens: int) -> None:
    assert image_tokens(width, height, detail) == tokens


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (PNG, (1024, 768)),
        (GIF, (320, 200)),
        (JPEG, (800, 600)),
        (WEBP, (512, 256)),
        (b"BM", None),
        (b"\x89PNG\r\n\x1a\n", None),
    ],
)
def test_the_size_is_read_from_the_file(data: bytes, size: tuple[int, int] | None) -> None:
    assert image_size(url(data)) == size


def test_urls_that_hold_no_image() -> None:
    assert image_size("https://example.com/a.png") is None
    assert image_size("data:image/png;base64,!!!!") is None
    assert part_tokens({"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}) == 765
    assert part_tokens({"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "low"}}) == 85


def test_a_prompt_holds_as_many_tokens_and_tells_images_apart() -> None:
    encoder = PromptEncoder(embedded(), EmbeddedTemplate())

    def ids(link: str | None) -> list[int]:
        image = [] if link is None else [{"type": "image_url", "image_url": {"url": link}}]
        found: list[int] = encoder.encode_chat(
            [{"role": "user", "content": [{"type": "text", "text": "Look"}, *image]}]
        ).tolist()
        return found

    plain = ids(None)
    assert len(ids(url(GIF))) == len(plain) + 255
    assert ids(url(GIF)) == ids(url(GIF))
    assert ids(url(GIF)) != ids(url(GIF + b"other"))


def test_a_sound_is_ten_tokens_a_second() -> None:
    data = base64.b64encode(bytes(96_000)).decode()
    assert part_tokens({"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}) == 20

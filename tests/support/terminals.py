"""Pseudo-terminals: to draw on, and what is then to be seen."""

import os
import pty
import re
import select
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def terminal(columns: int, lines: int = 24) -> Iterator[tuple[TextIO, int]]:
    """The stream to draw on and the descriptor to read what was drawn."""
    import fcntl
    import struct
    import termios

    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    with os.fdopen(follower, "w", encoding="utf-8") as stream:
        yield stream, leader
    os.close(leader)


def drawn(leader: int) -> str:
    chunks = []
    while select.select([leader], [], [], 0.05)[0]:
        chunks.append(os.read(leader, 65_536))
    return b"".join(chunks).decode()


def screen(text: str, columns: int) -> list[str]:
    """The lines of a terminal that was sent this text: it knows what progress is drawn with."""
    lines, row, column = [""], 0, 0
    for piece in re.findall(r"\x1b\[\d*[AKJ]|\r|\n|[^\x1b\r\n]+", text):
        if piece == "\r":
            column = 0
        elif piece == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif piece == "\x1b[K":
            lines[row] = lines[row][:column]
        elif piece == "\x1b[J":
            lines[row:] = [lines[row][:column]]
        elif piece.startswith("\x1b"):
            row -= int(piece[2:-1])
        else:
            assert column + len(piece) <= columns
            lines[row] = lines[row][:column].ljust(column) + piece + lines[row][column + len(piece) :]
            column += len(piece)
    return lines

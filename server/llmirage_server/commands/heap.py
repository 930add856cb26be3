"""How the server's process asks the system for memory."""

from __future__ import annotations

import ctypes
import sys

_LARGE_BYTES = 1 << 20  # above a read from a connection (256 KiB), below the tables of what the server keeps
_M_MMAP_THRESHOLD = -3  # malloc.h of glibc


def keep_large_blocks_apart() -> bool:
    """Give each large block a mapping of its own, which goes back to the system whole. Return whether it is done.

    glibc does so at first, but once such a block was freed, the next ones of its size come from the heap. The table of a
    dict that gains and loses entries is made anew now and then; in the heap each leaves a hole that small blocks divide,
    the next table does not fit in, and the heap grows.
    """
    if sys.platform != "linux":
        return False
    try:
        return bool(ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES))
    except (AttributeError, OSError):  # another C library
        return False

"""The heap of a process, with the server's settings and without."""

import platform
import subprocess
import sys

import pytest

HEAD = """
import random, sys, threading
from collections import OrderedDict
from pathlib import Path
from llmirage_server.commands.http_server import keep_heap_small

def resident_kib():
    return int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0])

if "apart" in sys.argv:
    assert keep_heap_small()
"""
# A cache of 26,000 blocks, 400,000 of which come and go; large blocks were freed before, as those of a tokenizer's file are.
CHURN = """
large = bytearray(30 << 20)
del large
draw = random.Random(1)
kept = OrderedDict()
for i in range(400_000):
    kept[i] = bytes(draw.choice((600, 900, 2500)))
    if len(kept) > 26_000:
        kept.popitem(last=False)
    if i == 50_000:
        before = resident_kib()
print(resident_kib() - before)
"""
# One thread after the other takes 20 MB for a while, and keeps the last block.
THREADS = """
before, kept, over = resident_kib(), [], threading.Event()
for _ in range(6):
    done = threading.Event()
    def work():
        kept.append([bytes(3000) for _ in range(7000)][-1])
        done.set()
        over.wait()
    threading.Thread(target=work, daemon=True).start()
    done.wait()
print(resident_kib() - before - 24 * 1024)
"""
# What computed much has freed every other block.
HOLES = """
import asyncio
from llmirage_server.commands.http_server import trim_heap

async def trim():
    trim_heap()

kept = [b"x" * 100_000 for _ in range(600)]
before = resident_kib()
del kept[::2]
if "apart" in sys.argv:
    asyncio.run(trim())
print(resident_kib() - before + 24 * 1024)
"""


def growth_kib(program: str, *how: str) -> int:
    done = subprocess.run([sys.executable, "-c", HEAD + program, *how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator")
@pytest.mark.parametrize("program", [CHURN, THREADS, HOLES], ids=["tables", "threads", "holes"])
def test_blocks_that_come_and_go_leave_no_holes_in_the_heap(program: str) -> None:
    assert growth_kib(program, "apart") < 512 < growth_kib(program)

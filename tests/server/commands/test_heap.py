"""The heap of a process whose tables are made anew again and again, with the server's setting and without."""

import platform
import subprocess
import sys

import pytest

# A cache of 26,000 blocks, 400,000 of which come and go; large blocks were freed before, as those of a tokenizer's file are.
CHURN = """
import random, sys
from collections import OrderedDict
from pathlib import Path
from llmirage_server.commands.http_server import keep_large_blocks_apart

def resident_kib():
    return int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0])

if "apart" in sys.argv:
    assert keep_large_blocks_apart()
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


def growth_kib(*how: str) -> int:
    done = subprocess.run([sys.executable, "-c", CHURN, *how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator")
def test_tables_that_are_made_anew_leave_no_holes_in_the_heap() -> None:
    assert growth_kib("apart") < 512 < growth_kib()

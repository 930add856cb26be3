"""What a user's own project sees: the examples of docs/python-studies.md under mypy --strict, and what it refuses."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
WRONG = """
import llmirage

llmirage.simulate(modle="x")
llmirage.simulate(tp="two")
llmirage.Server(gpu=3)
llmirage.step(model="m", decode=[(1, "x")])
found: int = llmirage.generate("chat")
llmirage.Server(gpus="H100")
"""
RIGHT = """
import llmirage

def ask() -> str:
    with llmirage.Server(virtual_time=True, gpu="h100_sxm", tp=2, speed=None) as server:
        [request] = server.expect(1, user="weather")
        return request.reply
"""


def test_examples_are_typed_and_mistakes_are_found(tmp_path: Path) -> None:
    text = (ROOT / "docs/python-studies.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    for number, block in enumerate(blocks):
        (tmp_path / f"example_{number}.py").write_text(block, encoding="utf-8")
    (tmp_path / "wrong.py").write_text(WRONG, encoding="utf-8")
    (tmp_path / "right.py").write_text(RIGHT, encoding="utf-8")
    faces = [*(ROOT / "client/llmirage").glob("*.py"), ROOT / "shared/llmirage_shared/settings.py"]
    done = subprocess.run(  # what is below the public signatures is left to `make types`: it takes a minute
        [sys.executable, "-m", "mypy", "--follow-imports=skip", "--cache-dir", os.devnull, *faces, *tmp_path.glob("*.py")],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    told = (line.partition(": error: ") for line in sorted(done.stdout.splitlines()))
    found = [Path(place).name for place, error, _ in told if error and tmp_path.name in place]
    assert len(blocks) == 6
    assert found == [f"wrong.py:{line}" for line in range(4, 10)], done.stdout + done.stderr

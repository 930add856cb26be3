"""Make the pictures of README.md and docs/ again: `make pictures` (chromium on the path).

docs/pictures/demo.svg: what `llmirage demo` prints, without references to other hosts.
docs/pictures/report.webp, lanes.webp: the report of a simulation. docs/pictures/live-page.webp: a server under load.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import time
import urllib.request
from collections.abc import Iterator
from fcntl import ioctl
from io import StringIO
from pathlib import Path

from browser import Browser, Tab
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

PICTURES = Path(__file__).resolve().parents[1] / "docs/pictures"
COLUMNS = 100
WIDTH, HEIGHT = 1280, 900
_LLMIRAGE = [sys.executable, "-m", "llmirage"]
_FONT_FACE = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
_FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_QUALITY = 80


def printed(*arguments: str) -> str:
    """What a command prints to a terminal of so many columns, colours included; without its progress, which is on stderr."""
    ours, its = pty.openpty()
    ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 60, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    environment.pop("COLUMNS", None)
    command = subprocess.Popen([*_LLMIRAGE, *arguments], stdout=its, stderr=subprocess.DEVNULL, env=environment)
    os.close(its)
    pieces = []
    with contextlib.suppress(OSError):  # the terminal's other side is closed
        while piece := os.read(ours, 65536):
            pieces.append(piece)
    os.close(ours)
    assert command.wait() == 0
    return b"".join(pieces).decode().replace("\r\n", "\n")


def terminal_picture(text: str, title: str) -> str:
    """SVG of a terminal that shows the text, in the reader's own fonts."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(text))
    svg = console.export_svg(title=title, theme=MONOKAI, unique_id="demo")
    svg = re.sub(r"<!--.*?-->", "", _FONT_FACE.sub("", svg))
    return re.sub(r"font-family: [^;]+", f"font-family: {_FONTS}", svg) + "\n"


def demo() -> str:
    """The server's banner and the first report, as far as its first tables."""
    for _ in range(5):
        text = printed("demo", "--speed", "1", "--sessions", "1").split("By conversation")[0]
        if "Note:" not in text:  # that the machine is too busy
            break
    lines = text.rstrip().splitlines()
    left_out = re.compile(r"^\s*(curl -N|-d '|assumed |pace )")
    shown = [line for line in lines if not left_out.match(re.sub(r"\x1b\[[\d;]*m", "", line))]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(shown).strip())


@contextlib.contextmanager
def server(*options: str) -> Iterator[str]:
    process = subprocess.Popen([*_LLMIRAGE, "serve", "--port", "8765", *options], stdout=subprocess.DEVNULL)
    url = "http://localhost:8765"
    try:
        for _ in range(300):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{url}/health").close()
                break
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait()


def webp(tab: Tab) -> bytes:
    """What the tab shows."""
    return tab.picture("webp", quality=_QUALITY)


def report(tab: Tab, folder: Path) -> None:
    workload = ["bundled:coding-agent-team", "--fixed-schedule-speedup", "10"]
    cluster = ["--model", "llama-3.1-70b", "--gpu", "h100_sxm", "--tp", "2", "--weights", "fp8", "--instances", "4"]
    goal = ["--slo", "ttft_p99<1s,tpot_p95<30ms", "--set", "records=true", "--artifact-dir", str(folder / "run")]
    subprocess.run([*_LLMIRAGE, "simulate", *workload, *cluster, *goal], check=True, stdout=subprocess.DEVNULL)
    page = folder / "report.html"
    subprocess.run([*_LLMIRAGE, "report", str(folder / "run"), "-o", str(page)], check=True, stdout=subprocess.DEVNULL)
    tab.open(page.as_uri())
    (PICTURES / "report.webp").write_bytes(webp(tab))
    tab.run("[...document.querySelectorAll('h2')].find(h => h.textContent == 'Conversations').scrollIntoView()")
    time.sleep(0.5)
    (PICTURES / "lanes.webp").write_bytes(webp(tab))


def live_page(tab: Tab, folder: Path) -> None:
    with server() as url:
        load = ["bundled:coding-agent", "--url", url, "--concurrency", "12", "--artifact-dir", str(folder / "load")]
        client = subprocess.Popen([*_LLMIRAGE, "run", *load], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        tab.open(url)
        time.sleep(30)
        (PICTURES / "live-page.webp").write_bytes(webp(tab))
        client.terminate()
        client.wait()


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    wanted = sys.argv[1:] or ["demo", "report", "live-page"]
    if "demo" in wanted:
        (PICTURES / "demo.svg").write_text(terminal_picture(demo(), "llmirage demo"), encoding="utf-8")
    with tempfile.TemporaryDirectory() as made:
        if {"report", "live-page"} & set(wanted):
            with Browser(Path(made)) as browser, browser.tab(WIDTH, HEIGHT) as tab:
                if "report" in wanted:
                    report(tab, Path(made))
                if "live-page" in wanted:
                    live_page(tab, Path(made))
    for picture in sorted(PICTURES.iterdir()):
        print(f"{picture.stat().st_size / 1000:6.0f} kB  {picture.relative_to(PICTURES.parents[1])}")

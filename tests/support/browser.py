"""A real browser without a window: takes pictures of pages and reads what its own measuring says."""

import base64
import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_NARROWEST = 500
_POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')


def find_browser() -> str | None:
    """Chromium or Chrome, where one is on the path."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """folder: for pages, pictures and the browser's own files."""

    def __init__(self, path: str, folder: Path) -> None:
        self._path = path
        self._folder = folder
        self._made = 0

    def picture(self, page: str, width: int, height: int) -> bytes:
        """The upper left of a page as PNG."""
        target = self._folder / f"picture{self._made}.png"
        self._run(page, f"--screenshot={target}", f"--window-size={width},{height}")
        return target.read_bytes()

    def ask(self, page: str, question: str, width: int = 1280, height: int = 900, keep_policy: bool = False) -> Any:
        """Runs the JavaScript `question` in the loaded page and returns what it returns, as JSON.

        The page's policy, which refuses scripts that are not its own, is taken out first unless keep_policy is set. Windows
        have a smallest width; a narrower page is shown in a frame.
        Raises AssertionError when the script did not run.
        """
        if not keep_policy:
            page = _POLICY.sub("", page)
        script = (
            "addEventListener('load', function () { var answer; try { answer = (function () {" + question + "})(); }"
            "catch (error) { answer = {error: String(error)}; }"
            "var out = document.createElement('pre'); out.id = 'answer'; out.textContent = JSON.stringify(answer);"
            "parent.document.body.appendChild(out); });"
        )
        page = page.replace("</body>", f"<script>{script}</script></body>")
        if width < _NARROWEST:
            size = f'width="{width}" height="{height}" style="border: 0"'
            page = f'<!DOCTYPE html><html><body><iframe {size} srcdoc="{html.escape(page)}"></iframe></body></html>'
        dom = self._run(page, "--dump-dom", f"--window-size={width},{height}")
        found = re.search(r'<pre id="answer">(.*?)</pre>', dom, re.DOTALL)
        assert found is not None, "the script did not run"
        return json.loads(html.unescape(found[1]))

    def colors(self, picture: bytes) -> dict[str, int]:
        """How many pixels of a PNG have which colour (#rrggbb), as the browser decodes it."""
        data = base64.b64encode(picture).decode()
        page = f'<!DOCTYPE html><html><body><img id="i" src="data:image/png;base64,{data}"></body></html>'
        question = """
            var image = document.getElementById('i'), canvas = document.createElement('canvas'), counts = {};
            canvas.width = image.naturalWidth; canvas.height = image.naturalHeight;
            var pen = canvas.getContext('2d'); pen.drawImage(image, 0, 0);
            var data = new Uint32Array(pen.getImageData(0, 0, canvas.width, canvas.height).data.buffer), table = new Map();
            data.forEach(function (p) { table.set(p, (table.get(p) || 0) + 1); });
            table.forEach(function (n, p) {
                var rgb = [p & 255, p >> 8 & 255, p >> 16 & 255];
                counts['#' + rgb.map(function (c) { return (c < 16 ? '0' : '') + c.toString(16); }).join('')] = n;
            });
            return counts;
        """
        answer = self.ask(page, question)
        assert isinstance(answer, dict)
        return answer

    def _run(self, page: str, *arguments: str) -> str:
        self._made += 1
        path = self._folder / f"page{self._made}.html"
        path.write_text(page, encoding="utf-8")
        command = [
            self._path,
            "--headless",
            "--no-sandbox",  # tests may run as root
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--force-device-scale-factor=1",
            "--virtual-time-budget=3000",
            f"--user-data-dir={self._folder / 'profile'}",
            *arguments,
            path.as_uri(),
        ]
        done = subprocess.run(command, capture_output=True, timeout=90, check=False)
        assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
        return done.stdout.decode(errors="replace")

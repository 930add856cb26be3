"""Chromium without a window, over its DevTools protocol: takes pictures of pages, runs scripts in them."""

import base64
import itertools
import json
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from websockets.sync.client import connect

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATH = next((path for name in NAMES if (path := shutil.which(name))), None)
needs_browser = pytest.mark.skipif(PATH is None, reason=f"no browser on the path (any of: {', '.join(NAMES)})")
_ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-port=0",
)  # fmt: skip
_COLORS = """
    var image = new Image(), counts = {};
    image.src = 'data:image/png;base64,%s';
    return image.decode().then(function () {
        var canvas = document.createElement('canvas'), table = new Map();
        canvas.width = image.naturalWidth; canvas.height = image.naturalHeight;
        var pen = canvas.getContext('2d'); pen.drawImage(image, 0, 0);
        new Uint32Array(pen.getImageData(0, 0, canvas.width, canvas.height).data.buffer)
            .forEach(function (p) { table.set(p, (table.get(p) || 0) + 1); });
        table.forEach(function (n, p) {
            var rgb = [p & 255, p >> 8 & 255, p >> 16 & 255];
            counts['#' + rgb.map(function (c) { return (c < 16 ? '0' : '') + c.toString(16); }).join('')] = n;
        });
        return counts;
    });
"""


class Browser:
    """One process for all tabs. folder: for pages and the browser's own files."""

    def __init__(self, folder: Path) -> None:
        assert PATH is not None
        self.folder = folder
        self._process = subprocess.Popen(
            [PATH, *_ARGUMENTS, f"--user-data-dir={folder}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        told, deadline_s = folder / "DevToolsActivePort", time.monotonic() + 60
        while not (told.exists() and told.read_text().count("\n")):
            assert time.monotonic() < deadline_s, "the browser does not start"
            time.sleep(0.02)
        port, path = told.read_text().split()
        self._connection = connect(f"ws://127.0.0.1:{port}{path}", max_size=None, compression=None, proxy=None)
        self._numbers = itertools.count()

    def __enter__(self) -> Self:
        self._socket = self._connection.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._connection.__exit__(kind, error, trace)
        self._process.terminate()
        self._process.wait(20)

    def call(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        """Return the result of a command, of a tab's session or of the browser."""
        number = next(self._numbers)
        said = {"id": number, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        self._socket.send(json.dumps(said))
        while (answer := json.loads(self._socket.recv(60))).get("id") != number:
            pass  # events
        assert "error" not in answer, answer
        return answer["result"]

    def tab(self, width: int = 1280, height: int = 900, dark: bool = False) -> "Tab":
        """Open a tab of a size, which may be that of a phone. dark: the scheme that the reader's system prefers."""
        target = self.call("Target.createTarget", url="about:blank", newWindow=True)["targetId"]
        tab = Tab(self, target, self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        tab.command("Emulation.setDeviceMetricsOverride", **metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        tab.command("Emulation.setEmulatedMedia", features=[scheme])
        return tab

    def colors(self, picture: bytes) -> dict[str, int]:
        """Return how many pixels of a PNG have which colour (#rrggbb), as the browser decodes it."""
        with self.tab() as tab:
            answer = tab.run(_COLORS % base64.b64encode(picture).decode())
        assert isinstance(answer, dict)
        return answer


class Tab:
    """One tab, of which a `with` block closes."""

    def __init__(self, browser: Browser, target: str, session: str) -> None:
        self._browser = browser
        self._target = target
        self._session = session

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._browser.call("Target.closeTarget", targetId=self._target)

    def open(self, url: str) -> None:
        """Load a page to its end."""
        assert "errorText" not in self.command("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'")

    def show(self, page: str, before: str = "") -> None:
        """Load a page given as text. before: JavaScript that runs before that of the page."""
        path = self._browser.folder / f"{self._target}.html"
        path.write_text(page, encoding="utf-8")
        if before:
            self.command("Page.enable")
            self.command("Page.addScriptToEvaluateOnNewDocument", source=before)
        self.open(path.as_uri())

    def run(self, script: str) -> Any:
        """Return what the script returns, as JSON, or that of its promise."""
        expression = f"(function () {{{script}\n}})()"
        answer = self.command("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, condition: str, seconds: float = 60) -> Any:
        """Return the value of a JavaScript expression, as soon as it is one that counts as true."""
        deadline_s = time.monotonic() + seconds
        while not (value := self.run(f"return {condition}")):
            assert time.monotonic() < deadline_s, f"never true: {condition}"
            time.sleep(0.02)
        return value

    def picture(self, kind: str = "png", **options: Any) -> bytes:
        """Return what the tab shows."""
        return base64.b64decode(self.command("Page.captureScreenshot", format=kind, **options)["data"])

    def command(self, name: str, **parameters: Any) -> Any:
        """Return the answer to a command of Chrome's DevTools protocol."""
        return self._browser.call(name, self._session, **parameters)

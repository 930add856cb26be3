"""A real browser that stays: Chromium behind chromedriver, over the W3C WebDriver protocol."""

import base64
import shutil
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
from browser import find_browser

ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--force-device-scale-factor=1",
)  # fmt: skip


def find_driver() -> str | None:
    """chromedriver, where it and a browser are on the path."""
    return shutil.which("chromedriver") if find_browser() else None


class Tab:
    """One tab of a given size; `width` may be that of a phone. dark: the scheme that the reader's system prefers."""

    def __init__(self, driver: str, folder: Path, width: int, height: int, dark: bool = False) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._process = subprocess.Popen(
            [driver, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False)
        arguments = [*ARGUMENTS, f"--user-data-dir={folder}", *(["--force-dark-mode"] if dark else [])]
        metrics = {"width": width, "height": height, "pixelRatio": 1, "touch": False}
        options = {"binary": find_browser(), "args": arguments, "mobileEmulation": {"deviceMetrics": metrics}}
        deadline_s = time.monotonic() + 30
        while True:
            try:
                self._client.get("/status")
                break
            except httpx.TransportError:
                assert time.monotonic() < deadline_s, "chromedriver does not answer"
                time.sleep(0.05)
        made = self._call("POST", "/session", {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}})
        self._session = f"/session/{made['sessionId']}"
        if dark:
            features = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
            self.command("Emulation.setEmulatedMedia", **features)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._call("DELETE", self._session)
        self._process.terminate()
        self._process.wait(10)
        self._client.close()

    def open(self, url: str) -> None:
        self._call("POST", f"{self._session}/url", {"url": url})

    def run(self, script: str) -> Any:
        """What the script returns."""
        return self._call("POST", f"{self._session}/execute/sync", {"script": script, "args": []})

    def wait_for(self, condition: str, seconds: float = 20) -> Any:
        """The value of a JavaScript expression, as soon as it is one that counts as true."""
        deadline_s = time.monotonic() + seconds
        while not (value := self.run(f"return {condition}")):
            assert time.monotonic() < deadline_s, f"never true: {condition}"
            time.sleep(0.05)
        return value

    def picture(self) -> bytes:
        """What the tab shows, as PNG."""
        return base64.b64decode(self._call("GET", f"{self._session}/screenshot"))

    def command(self, name: str, **parameters: Any) -> Any:
        """The answer to a command of Chrome's DevTools protocol."""
        return self._call("POST", f"{self._session}/goog/cdp/execute", {"cmd": name, "params": parameters})

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        answer = self._client.request(method, path, json=body if body is not None else ({} if method == "POST" else None))
        value = answer.json()["value"]
        assert answer.status_code == 200, value
        return value

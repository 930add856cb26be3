"""The live page in a real browser, while requests come. Skipped where there is no browser and driver."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from served import serving
from webdriver import Tab, find_driver

DRIVER = find_driver()
pytestmark = pytest.mark.skipif(DRIVER is None, reason="no chromedriver and browser on the path")

EVIL = "<img src=x onerror='document.title=\"owned\"'>"
CARDS = "Array.from(document.querySelectorAll('.card .value')).map(card => card.textContent)"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving("--ttft", "20", "--itl", "5", "--api-key", "sk-page") as v1:
        yield v1.removesuffix("/v1")


@pytest.fixture
def load(url: str) -> Iterator[None]:
    """Requests, four at a time, until the test has ended."""
    over = threading.Event()

    def ask() -> None:
        with httpx.Client(headers={"authorization": "Bearer sk-page"}, trust_env=False) as client:
            while not over.is_set():
                body = {"model": "any", "messages": [{"role": "user", "content": EVIL}], "max_tokens": 40}
                client.post(f"{url}/v1/chat/completions", json=body)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    yield
    over.set()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_it_shows_what_happens_at_the_width_of_a_desk_and_of_a_phone(
    url: str, load: None, tmp_path: Path, width: int, dark: bool
) -> None:
    assert DRIVER is not None
    with Tab(DRIVER, tmp_path, width, 900, dark) as tab:
        tab.open(f"{url}/")
        tab.wait_for("!document.getElementById('login').hidden")
        tab.run("document.getElementById('key').value = 'sk-page';document.querySelector('#login button').click()")
        tab.wait_for("document.querySelectorAll('#requests tr').length > 8")
        tab.wait_for(f"parseFloat(({CARDS})[0].replace(',', '')) > 50")  # output tokens a second
        assert tab.wait_for(f"({CARDS})[3].startsWith('20 ms')")  # TTFT
        assert tab.wait_for(f"({CARDS})[4].startsWith('5.00 ms')")  # TPOT
        assert tab.run("return document.querySelectorAll('.instance').length") == 2
        assert tab.run("return document.documentElement.scrollWidth <= innerWidth")
        assert tab.run("return document.title") == "llmirage: Qwen/Qwen3-30B-A3B"  # a prompt is text, never HTML
        assert tab.run("return document.querySelector('#requests summary').textContent") == EVIL
        ground = tab.run("return getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(14, 19, 26)" if dark else "rgb(245, 247, 250)")


def test_what_a_reader_opened_stays_open_and_controls_act(url: str, load: None, tmp_path: Path) -> None:
    assert DRIVER is not None
    with Tab(DRIVER, tmp_path, 1280, 900) as tab:
        tab.open(f"{url}/")
        tab.run("sessionStorage.setItem('llmirage-key', 'sk-page')")
        tab.open(f"{url}/")
        ended = "Array.from(document.querySelectorAll('#requests tr')).find(row => row.children[3].textContent === '200')"
        number = tab.wait_for(f"({ended} || {{dataset: {{}}}}).dataset.number")
        row = f"document.querySelector('#requests tr[data-number=\"{number}\"] details')"
        tab.run(f"{row}.open = true")
        tab.wait_for(f"Number(document.querySelector('#requests tr').dataset.number) > {number} + 8")
        assert tab.run(f"return {row}.open")
        assert "reply" in tab.run(f"return {row}.textContent")
        tab.run("document.getElementById('speed').value = '3'; document.querySelector('#speed-form button').click()")
        assert tab.wait_for("document.getElementById('said').textContent") == "Speed is 3 from now on."
        tab.run("document.getElementById('reset').click()")
        tab.wait_for("document.getElementById('said').textContent === 'The prefix caches are empty.'")

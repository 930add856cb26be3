"""The live page in a real browser, while requests come. Skipped where there is no browser."""

import json
import threading
from collections.abc import Iterator

import httpx
import pytest
from browser import Browser, Tab, needs_browser
from served import serving

from llmirage_server.faults.kinds import FAULTS

pytestmark = needs_browser

EVIL = "<img src=x onerror='document.title=\"owned\"'>"
CARDS = "Array.from(document.querySelectorAll('.card .value')).map(card => card.textContent)"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    script = tmp_path_factory.mktemp("script") / "replies.yaml"
    script.write_text("rules:\n  - when: {user: weather}\n    reply: It is sunny.\n")
    with serving("--ttft", "20", "--itl", "5", "--api-key", "sk-page", "--script", str(script)) as v1:
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
def test_it_shows_what_happens_on_a_desk_and_on_a_phone(
    url: str, load: None, browser: Browser, width: int, dark: bool
) -> None:
    with browser.tab(width, 900, dark) as tab:
        tab.open(f"{url}/")
        tab.wait_for("!document.getElementById('login').hidden")
        tab.run("document.getElementById('key').value = 'sk-page';document.querySelector('#login button').click()")
        tab.wait_for("document.querySelectorAll('#requests tr').length > 8")
        tab.wait_for(f"parseFloat(({CARDS})[0].replace(',', '')) > 50")  # output tokens a second
        assert tab.wait_for(f"({CARDS})[3].startsWith('20 ms')")  # TTFT
        assert tab.wait_for(f"({CARDS})[4].startsWith('5.00 ms')")  # TPOT
        assert tab.run("return document.querySelectorAll('.instance').length") == 2
        assert tab.run("return document.documentElement.scrollWidth <= innerWidth")
        assert (
            tab.run("return document.title") == "llmirage: Qwen/Qwen3-30B-A3B-Instruct-2507"
        )  # a prompt is text, never HTML
        tab.wait_for(f"document.querySelector('#requests summary').textContent == {json.dumps(EVIL)}")  # once it was read
        ground = tab.run("return getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(14, 19, 26)" if dark else "rgb(245, 247, 250)")


def test_what_a_reader_opened_stays_open_and_controls_act(url: str, load: None, browser: Browser) -> None:
    with browser.tab(1280, 900) as tab:
        signed_in(tab, url)
        ended = "Array.from(document.querySelectorAll('#requests tr')).find(row => row.children[3].textContent === '200')"
        number = tab.wait_for(f"({ended} || {{dataset: {{}}}}).dataset.number")
        row = f"document.querySelector('#requests tr[data-number=\"{number}\"] details')"
        tab.run(f"{row}.querySelector('summary').click()")
        tab.wait_for(f"Number(document.querySelector('#requests tr').dataset.number) > {number} + 8")
        assert tab.run(f"return {row}.open")
        assert "reply" in tab.run(f"return {row}.textContent")
        tab.wait_for(f"{row}.textContent.includes('as curl')")  # the journal's entry, read with the click
        whole = tab.run(f"return {row}.lastElementChild.textContent")
        assert f'"content": {json.dumps(EVIL)}' in whole
        assert "curl" in whole.partition("as curl")[2]
        assert "sk-page" not in whole
        tab.run("document.getElementById('speed').value = '3'; document.querySelector('#speed-form button').click()")
        assert tab.wait_for("document.getElementById('said').textContent") == "Speed is 3 from now on."
        tab.run("document.getElementById('reset').click()")
        tab.wait_for("document.getElementById('said').textContent === 'The prefix caches are empty.'")


def signed_in(tab: Tab, url: str) -> None:
    tab.open(f"{url}/")
    tab.run("sessionStorage.setItem('llmirage-key', 'sk-page')")
    tab.open(f"{url}/")
    tab.wait_for("document.getElementById('fault').options.length")


def ask(url: str, text: str) -> int:
    body = {"model": "any", "messages": [{"role": "user", "content": text}], "max_tokens": 20, "stream": True}
    return httpx.post(f"{url}/v1/chat/completions", json=body, headers={"authorization": "Bearer sk-page"}).status_code


@pytest.mark.parametrize("width", [1280, 390])
def test_a_fault_is_ordered_seen_and_removed(url: str, browser: Browser, width: int) -> None:
    with browser.tab(width, 900) as tab:
        signed_in(tab, url)
        offered = tab.run("return Array.from(document.getElementById('fault').options).map(option => option.value)")
        assert offered == list(FAULTS)
        tab.run(
            "const select = document.getElementById('fault'); select.value = 'status';"
            "select.dispatchEvent(new Event('change')); document.querySelector('.tools details').open = true"
        )
        assert json.loads(tab.run("return document.getElementById('fault-json').value"))["kind"] == "status"
        assert "HTTP status. (default: 500" in tab.run("return document.getElementById('parameters').textContent")
        assert tab.run("return document.documentElement.scrollWidth <= innerWidth")
        order(tab, '{"kind": "status", "status": 418, "endpoint": "chat", "times": 1}')
        listed = tab.wait_for("document.querySelectorAll('#faults li').length === 1 && faults.textContent")
        assert "status: 418" in listed
        assert "happened 0 times, from POST /llmirage/faults" in listed
        assert [ask(url, "Is the weather fine?") for _ in range(2)] == [418, 200]
        tab.wait_for("document.getElementById('faults').textContent.includes('happened once')")
        row = "Array.from(document.querySelectorAll('#requests tr')).find(row => row.textContent.includes('{}'))"
        refused, replied = row.format("418"), row.format("replies.yaml:2")
        assert tab.wait_for(f"({refused} || {{lastChild: {{}}}}).lastChild.textContent") == "status"
        assert tab.wait_for(f"({replied} || {{lastChild: {{}}}}).lastChild.textContent") == "script rule replies.yaml:2"
        assert tab.run("return requests.getBoundingClientRect().right <= innerWidth")
        tab.run("document.querySelector('#faults button').click()")
        tab.wait_for("!document.querySelector('#faults li')")
        assert httpx.get(f"{url}/llmirage/faults", headers={"authorization": "Bearer sk-page"}).json()["faults"] == []


def test_a_fault_that_is_none_is_told_in_the_server_s_words(url: str, browser: Browser) -> None:
    with browser.tab(1280, 900) as tab:
        signed_in(tab, url)
        order(tab, '{"kind": "stattus"}')
        message = "faults[0].kind: there is no fault 'stattus' (did you mean 'status'?); see `llmirage faults`"
        tab.wait_for(f"said.textContent === {json.dumps(message)}")
        order(tab, "{kind: status}")
        tab.wait_for("said.textContent.startsWith('The parameters are not JSON')")
        assert tab.run("return document.querySelectorAll('#faults li').length") == 0


def order(tab: Tab, fault: str) -> None:
    tab.run(f"document.getElementById('fault-json').value = {json.dumps(fault)}")
    tab.run("document.querySelector('#fault-form button').click()")

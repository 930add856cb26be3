"""What the README shows works as pasted, against a server on a port; test_pages.py types all other commands."""

import json
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from pages import PAGES, QUICK, ROOT, blocks, commands
from served import serving

from llmirage_client.cli import main

README = PAGES[0].read_text(encoding="utf-8")


def block_with(language: str, text: str) -> str:
    found = [block.text for block in blocks(PAGES[0]) if block.language == language and text in block.text]
    assert len(found) == 1, f"{len(found)} {language} blocks with {text!r}"
    return found[0]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving("--speed", "100") as address:
        yield address.removesuffix("/v1")


def test_the_curl_line_gets_a_reply_of_the_asked_length(url: str) -> None:
    [line] = [line for block in blocks(PAGES[0]) for line in commands(block) if line.startswith("curl ")]
    done = subprocess.run(
        ["sh", "-c", line.replace("http://localhost:8000", url)], capture_output=True, text=True, check=True, timeout=60
    )
    assert '"object":"chat.completion"' in done.stdout
    assert '"completion_tokens":60' in done.stdout


def test_the_pytest_example_passes(tmp_path: Path) -> None:
    (tmp_path / "test_weather.py").write_text(block_with("python", "@pytest.mark.llmirage"))
    command = [sys.executable, "-m", "pytest", "-p", "no:asyncio", "-p", "no:anyio", "-p", "no:cacheprovider", "-W", "error"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def typed(*parts: str) -> list[object]:
    """The commands of the pages that have one of these parts."""
    lines = [(page, line) for page in PAGES for block in blocks(page) for line in commands(block)]
    return [
        pytest.param(line, id=f"{page.stem}-{number}")
        for number, (page, line) in enumerate(lines)
        if any(part in line for part in parts)
    ]


@pytest.mark.parametrize("command", typed("curl "))
def test_every_curl_line_of_the_pages_is_answered(url: str, command: str) -> None:
    urllib.request.urlopen(f"{url}/v1/models", timeout=30).close()
    line, _, told = command.partition(" #")
    assert "http://localhost:8000" in line
    done = subprocess.run(
        ["sh", "-c", f"{line.replace('http://localhost:8000', url)} -sS --max-time 2 --write-out '\n%{{http_code}}'"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    endless = "-N" in command.split()
    assert done.returncode in ((0, 28) if endless else (0,)), done.stderr
    body, _, status = done.stdout.rpartition("\n")
    assert status == "200", done.stdout
    assert body
    if documented := re.search(r"\{.*?\}", told):
        assert json.loads(body).keys() == json.loads(documented[0]).keys()


@pytest.mark.parametrize("command", typed("llmirage verdict http", " --executor process "))
def test_every_command_that_needs_a_port_works(
    url: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(re.sub(r"http://(localhost|host):8000", url, command), comments=True)
    quick = [*QUICK["run"], "--workers", "1", "--speed", "100"] if words[1] == "run" else []
    done = CliRunner().invoke(main, [*words[1:], *quick])
    assert done.exit_code in ((0, 3) if "verdict" in words else (0,)), done.output


def test_the_pages_have_such_lines() -> None:
    assert len(typed("curl ")) >= 7
    assert len(typed("llmirage verdict http", " --executor process ")) >= 4


def anchors(page: Path) -> set[str]:
    """What links can name on a page: its headings, as GitHub and the site spell them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", ["README.md", "DESIGN.md", "CONTRIBUTING.md", "CHANGELOG.md", "workloads/README.md"])
def test_every_link_outside_of_docs_leads_somewhere(name: str) -> None:
    page = ROOT / name
    dead = []
    for target, _, anchor in re.findall(r"\]\(([^)#\s]*)(#([^)\s]*))?\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        led = page.parent / target if target else page
        if not led.exists() or (anchor and anchor not in anchors(led)):
            dead.append(f"{target}#{anchor}")
    assert dead == []


def test_the_readme_leads_to_the_first_five_minutes_of_each_user_and_to_files_that_exist() -> None:
    linked = set(re.findall(r"\]\((docs/start/[\w-]+\.md)\)", README))
    assert linked == {str(path.relative_to(ROOT)) for path in (ROOT / "docs/start").glob("*.md")}
    assert len(linked) == 4
    assert not [name for name in re.findall(r"workloads/[\w./-]+", README) if not (ROOT / name).exists()]


def test_the_command_reference_is_what_the_commands_say() -> None:
    check = [sys.executable, str(ROOT / "tools/command_docs.py"), "--check", str(ROOT / "docs/commands.md")]
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

"""What README.md and docs/ show to be typed is typed: every command and every Python program, in this process.

A block that begins with a comment like `# study.yaml` is that file. What else a reader has before he types is in FILES and
BEFORE; what needs more than this process is in pages.ELSEWHERE and pages.NEEDS_A_PORT, with what it needs.
"""

import os
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from examples import ONE_OF_MANY, command_of
from examples import commands as help_commands
from pages import (
    BEFORE,
    ELSEWHERE,
    FILES,
    LANGUAGES,
    NEEDS_A_PORT,
    PAGES,
    QUICK,
    ROOT,
    TYPED_PAGES,
    Block,
    blocks,
    commands,
    give_files,
    name_of,
)
from played_pages import Machine

AFTER = {
    "docs/routers.md": [f"simulate bundled:dag-example --instances 3 --router my_routers:{it}" for it in ("pick", "Canary")]
}
"""What the text around a page's programs says that they are for."""


_OF_HELP = {line for words in help_commands() for line in command_of(words).examples}  # tests/client/commands types them
_typed = {line.split()[2] for line in _OF_HELP if line.startswith("llmirage sweep ")}  # the same studies on every page


def elsewhere(command: str) -> bool:
    return any(part in command for part in (*ELSEWHERE, *NEEDS_A_PORT))


def shown(page: Path) -> list[tuple[Block, str]]:
    return [(block, line) for block in blocks(page) for line in commands(block)]


def to_type() -> list[Path]:
    return [page for page in PAGES if any(commands(block) or block.language == "python" for block in blocks(page))]


def problem_of(machine: Machine, line: str) -> str | None:
    if line in _OF_HELP:
        return None
    words = shlex.split(os.path.expandvars(line), comments=True)
    if words[0] == "make":
        return None if re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE) else "no such target"
    if words[0] != "llmirage":
        return "it is neither run here nor in pages.ELSEWHERE"
    if words[1] == "sweep":
        if words[2] in _typed:
            return None
        _typed.update(name for name in words[2:3] if name.startswith("bundled:"))
    status, output = machine.command([*words[1:], *QUICK.get(words[1], ())])
    right = status == 0 and output and not ONE_OF_MANY.search(output)
    return None if right else f"exit status {status}\n{output}"


@pytest.mark.usefixtures("own_metrics")
@pytest.mark.parametrize("page", to_type(), ids=lambda page: page.stem)
def test_what_a_page_shows_to_be_typed_works(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KEY", "secret")
    machine = Machine(tmp_path, monkeypatch)
    give_files(tmp_path, page)
    lines = [f"llmirage {line}" for line in BEFORE.get(name_of(page), ())]
    wrong: list[tuple[str, str]] = []

    def type_all() -> None:
        typed = [line for line in lines if not elsewhere(line)]
        wrong.extend([(line, problem) for line in typed if (problem := problem_of(machine, line))])
        lines.clear()

    for block in blocks(page):
        lines += commands(block)
        if block.language == "python":
            type_all()
            machine.python(block.text, f"{name_of(page)}:{block.line}")
            assert '"error"' not in capsys.readouterr().out
    lines += [f"llmirage {line}" for line in AFTER.get(name_of(page), ())]
    type_all()
    assert not wrong, "\n".join(f"{name_of(page)}: {line}\n{problem}" for line, problem in wrong)


def test_what_is_said_of_the_pages_is_of_pages_that_are_there() -> None:
    lines = [line for page in (*PAGES, *TYPED_PAGES) for _, line in shown(page)]
    assert {block.language for page in (*PAGES, *TYPED_PAGES) for block in blocks(page)} <= LANGUAGES
    assert not [part for part in (*ELSEWHERE, *NEEDS_A_PORT) if not any(part in line for line in lines)]
    assert {*FILES, *BEFORE, *AFTER} <= {name_of(page) for page in to_type()}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert not [
            file
            for file in FILES.get(name_of(page), ())
            if Path(file).stem not in text and f" {Path(file).parent} " not in text
        ], page


def test_each_page_has_the_title_that_the_navigation_gives_it() -> None:
    def titles(entries: list[dict[str, Any]], group: str = "") -> Iterator[tuple[str, set[str]]]:
        for name, place in (item for entry in entries for item in entry.items()):
            if isinstance(place, str):
                yield place, {name, f"{group}: {name[0].lower()}{name[1:]}"}
            else:
                yield from titles(place, name)

    _, *pages = titles(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"])
    assert len(pages) > 40
    for page, allowed in pages:
        first = (ROOT / "docs" / page).read_text().splitlines()[0]
        assert first.removeprefix("# ") in allowed, page

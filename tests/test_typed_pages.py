"""The pages for newcomers are typed from top to bottom, in a shell, with servers on ports.

A block that begins with a comment like `# app.py` is that file. What a `console` block shows below a command is what it
prints, among other lines.
"""

import re
from pathlib import Path

import pytest
from pages import ELSEWHERE, QUICK, ROOT, TYPED_PAGES, Block, blocks, commands
from terminal import Terminal

STAYING = {"python gateway.py": "4000"}
"""Programs of the pages that are servers, and their ports."""


def file_of(block: Block) -> tuple[str, str] | None:
    """Name and text, without the line with the name where the format has no comments."""
    found = re.match(r"# (\S+\.\w+)\n", block.text)
    if found is None:
        return None
    return found[1], block.text[found.end() :] if found[1].endswith(("json", "jsonl")) else block.text


def quick(command: str) -> str:
    """The command, at a pace at which little is waited for."""
    program, _, rest = command.partition(" ")
    verb = rest.partition(" ")[0]
    if program != "llmirage" or "--speed max" in command:
        return command
    few = QUICK.get(verb, ()) if "bundled:" in command or verb in ("generate", "size", "sweep") else ()
    return " ".join([command, *few, *(["--speed", "60"] if verb in ("serve", "run") else [])])


def shown_below(block: Block) -> list[list[str]]:
    """The lines below each command of a console block."""
    parts = re.split(r"(?m)^\$ ", block.text.replace("\\\n", " "))[1:]
    return [[" ".join(line.split()) for line in part.splitlines()[1:] if line.strip(" .-")] for part in parts]


@pytest.mark.parametrize("page", TYPED_PAGES, ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_a_page_does_what_it_says(page: Path, tmp_path: Path) -> None:
    with Terminal(tmp_path, STAYING) as terminal:
        for block in blocks(page):
            if (file := file_of(block)) is not None:
                terminal.file(*file)
                continue
            shown = shown_below(block) if block.language == "console" else []
            for number, command in enumerate(commands(block)):
                if any(part in command for part in ELSEWHERE):
                    continue
                status, output = terminal.type(command if shown else quick(command))
                timed = "llmirage run" in command and "--slo" in command  # on a machine that may be busy
                assert status == 0 or (timed and status == 3), f"{page.name}:{block.line}: {command}\n{output}"
                printed = "\n".join(" ".join(line.split()) for line in output.splitlines())
                missing = [line for line in (shown[number] if shown else []) if line not in printed]
                assert not missing, f"{page.name}:{block.line}: {command}\nnot printed: {missing}\n{output}"


def test_every_program_of_these_pages_is_a_file_that_is_run() -> None:
    for page in TYPED_PAGES:
        typed = "\n".join(command for block in blocks(page) for command in commands(block))
        names = [file[0] for block in blocks(page) if (file := file_of(block)) is not None]
        texts = [block.text for block in blocks(page)]
        for block in blocks(page):
            if block.language == "python":
                assert file_of(block) is not None, f"{page}:{block.line}: a program without a name"
        for name in names:
            used = name in typed or any(re.search(rf"\b{Path(name).stem}\b", text) for text in texts if name not in text)
            assert used, f"{page.relative_to(ROOT)}: nothing uses {name}"

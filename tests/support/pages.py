"""What the pages show to be typed: their fenced blocks, as commands and as Python."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md")]
PAGES += sorted([*DOCS.glob("*.md"), *(DOCS / "from").glob("*.md")])
TYPED_PAGES = sorted([*(DOCS / "start").glob("*.md"), *(DOCS / "how-to").glob("*.md")])
"""Those for newcomers: tests/test_typed_pages.py types them in a shell, tests/test_pages.py all others in one process."""

ELSEWHERE = {
    "ray start ": "a cluster of Ray",
    " --executor ray ": "a cluster of Ray: tests/client/workers",
    "pip install ": "a package index: tools/wheel_tests.py",
    "uvx ": "uv and a package index",
    "pipx run ": "pipx and a package index",
    "docker ": "docker: tests/deploy reads what it is given",
    "npx ": "node and packages: tests/clients/test_node_helper.py",
    "vllm-router ": "a router: tests/clients/test_outside_routers.py",
    " routed": "a run through a router: tests/client/measure/test_route_score.py",
    "kind load": "docker and kind",
    "helm install": "a Kubernetes cluster: tests/deploy renders what it is given",
    "kubectl apply": "a Kubernetes cluster: tests/deploy builds what it is given",
}
"""Parts of commands that no page's test runs, and what they need."""

NEEDS_A_PORT = {
    "curl ": "curl and a port: tests/test_readme.py types each of them",
    "llmirage record --upstream ": "a port and a server behind it: tests/server/commands/test_record.py",
    "llmirage verdict http": "a port: tests/test_readme.py",
    "pytest test_capital.py": "pytest within pytest: tests/client/llmirage/test_pytest_recordings.py",
    " --executor process ": "processes, which share a port: tests/test_readme.py",
}
"""Parts of commands that cannot run in one process without a port."""
_FEW = ["--num-conversations", "4"]
QUICK = {
    "generate": ["--conversations", "4"],
    "run": _FEW,
    "simulate": _FEW,
    "size": ["--requests", "20", "--request-rate", "0.5"],
    "sweep": ["--workers", "1"],
}
"""Words that make a command quick; the last of equal options counts."""
WORKLOAD, CLUSTER = "workloads/dag-example.jsonl", "workloads/clusters/dense-8b.yaml"
FILES = {
    "README.md": {"recordings/chat.yaml": "tests/data/recordings/chat.yaml"},
    "docs/cluster-files.md": {"my-cluster.yaml": "yaml"},
    "docs/extensions.md": {"chats.tabs": "text"},
    "docs/faults.md": {"faults.yaml": "yaml"},
    "docs/from/aimock.md": {"fixtures/agent.json": "tests/data/recordings/aimock.json"},
    "docs/from/aiperf.md": {"dag.jsonl": WORKLOAD},
    "docs/from/evalscope.md": {"conversations.jsonl": "json"},
    "docs/from/vcr.md": {
        name: f"tests/data/recordings/{Path(name).name}"
        for name in ("cassettes/test_agent.yaml", "pairs.jsonl", "batch_input.jsonl", "batch_output.jsonl")
    },
    "docs/recordings.md": {"recordings/chat-what-is-the-weather-3f2a91c0.yaml": "yaml"},
    "docs/routers.md": {"my_routers.py": "python"},
    "docs/simulate.md": {"trace.jsonl": WORKLOAD, "mine.yaml": CLUSTER},
    "docs/studies.md": {"study.yaml": "yaml"},
}
"""By page and name: a file of the repository, or a language: the page's first block of YAML, all of Python."""
_RUN = "run bundled:dag-example --artifact-dir"
BEFORE = {
    "docs/calibrate.md": ["serve --model llama-3.1-8b --gpu h100_sxm --instances 1 --weights bf16"],
    "docs/report.md": [f"{_RUN} {folder}" for folder in ("artifacts/RUN", "artifacts/SWEEP/1", "runs/a", "runs/b", "runs/c")]
    + ["run bundled:dag-example"],
}
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_SHELL = ("sh", "bash", "shell", "")
LANGUAGES = {*_SHELL, "console", "python", "js", "json", "yaml", "toml", "text", "pyi"}
"""Of blocks: a shell's and Python's are typed, tests/clients/test_node_helper.py runs JavaScript, the others are data."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. language: as written behind the fence; line: of the fence in its page."""

    page: str
    line: int
    language: str
    text: str


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        indent, language, body = found.groups()
        line = text.count("\n", 0, found.start()) + 1
        yield Block(str(page.relative_to(ROOT)), line, language, re.sub(rf"^{indent}", "", body, flags=re.MULTILINE))


def commands(block: Block) -> list[str]:
    """The command lines of a block, each in one line: those behind a `$ `, or all lines of a shell block."""
    lines = block.text.replace("\\\n", " ").splitlines()
    if any(line.startswith("$ ") for line in lines):
        return [line[2:].strip() for line in lines if line.startswith("$ ")]
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")] if block.language in _SHELL else []


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def give_files(folder: Path, page: Path) -> None:
    texts = {found[1]: block.text for block in blocks(page) if (found := re.match(r"# (\S+\.\w+)\n", block.text))}
    for name, source in FILES.get(name_of(page), {}).items():
        of_page = [block.text for block in blocks(page) if block.language == source]
        texts[name] = "\n".join(of_page if source == "python" else of_page[:1]) or (ROOT / source).read_text()
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)

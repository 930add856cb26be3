"""Installs the programs that the tests in this folder run: `python install.py --into FOLDER [NAME ...]`.

Each gets a place of its own. Without names: all but the very large ones. uv installs them; its variables (UV_CONSTRAINT,
UV_FIND_LINKS, UV_TORCH_BACKEND=cpu) say which PyTorch, among other things. What cannot be installed is named;
its tests are skipped.
"""

import argparse
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PYTHON = {
    "aider": ["aider-chat"],
    "aiperf": ["aiperf"],
    "dspy": ["dspy"],
    "evalscope": ["evalscope[perf]"],
    "genai-bench": ["genai-bench"],
    "guidellm": ["guidellm"],
    "inference-perf": ["inference-perf"],
    "lm-eval": ["lm-eval[api]", "transformers"],
    "locust": ["locust"],
    "sdks": [
        "-e",
        f"{ROOT}[dev]",
        "instructor",
        "langchain-openai",
        "langgraph",
        "mcp",
        "openai-agents",
        "pydantic-ai-slim[openai]",
        "sglang-router",
        "viztracer",
        "vllm-router",
    ],
    "litellm": ["-e", f"{ROOT}[dev]", "litellm[proxy]"],
    "sglang": ["sglang"],
    "smolagents": ["smolagents[openai]"],
}
NEWER = {"inference-perf": "3.12"}  # what needs a newer Python than llmirage
NODE = {
    "codex": ["@openai/codex"],
    "claude-code": ["@anthropic-ai/claude-code"],
    "node-sdks": ["ai", "@ai-sdk/openai", "jest", "openai", "vitest", "zod"],
    "opencode": ["opencode-ai"],
    "promptfoo": ["promptfoo"],
    "qwen-code": ["@qwen-code/qwen-code"],
}
LARGE = ("sglang",)  # gigabytes; its load generator needs the whole package


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("names", nargs="*", choices=[[], *PYTHON, *NODE], metavar="NAME")
    given = parser.parse_args()
    place: Path = given.into.absolute()
    place.mkdir(parents=True, exist_ok=True)
    names = given.names or [name for name in (*PYTHON, *NODE) if name not in LARGE]
    missing = [name for name in names if not (place / name / "done").exists()]
    for name in (name for name in missing if not install(name, place)):
        print(f"{name}: could not be installed; its tests are skipped", file=sys.stderr)


def install(name: str, place: Path) -> bool:
    print(f"installing {name} into {place / name}", flush=True)
    folder = place / name
    if name in NODE:
        folder.mkdir(exist_ok=True)
        commands = [["npm", "install", "--silent", "--no-fund", "--no-audit", "--prefix", str(folder), *NODE[name]]]
    else:
        uv = _uv(place)
        python = NEWER.get(name, sys.executable)
        commands = [
            [uv, "venv", "--quiet", "--allow-existing", "--python", python, str(folder)],
            [uv, "pip", "install", "--quiet", "--python", str(folder / "bin/python"), *PYTHON[name]],
        ]
    try:
        done = all(subprocess.run(command, check=False).returncode == 0 for command in commands)
    except FileNotFoundError:
        return False
    if done:
        (folder / "done").touch()
    return done


def _uv(place: Path) -> str:
    uv = place / "uv" / "bin" / "uv"
    if not uv.exists():
        venv.create(place / "uv", with_pip=True)
        subprocess.run([place / "uv/bin/python", "-m", "pip", "--quiet", "install", "uv"], check=True)
    return str(uv)


if __name__ == "__main__":
    main()

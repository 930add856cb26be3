"""What is built into the client: workloads, studies, workload formats."""

from __future__ import annotations

from dataclasses import asdict

from llmirage_client.report.screen import Row
from llmirage_client.sweep.file import BUNDLED, BUNDLED_DIRECTORY, read_study
from llmirage_client.workload.registry import FORMATS, bundled, load
from llmirage_client.workload.summary import summarise


def workloads() -> list[Row]:
    """Return the rows of the bundled workloads."""
    rows = []
    for name, path in bundled().items():
        workload = load(str(path))
        summary = summarise(workload, with_reuse=False)
        rows.append(
            {
                "name": f"bundled:{name}",
                "format": workload.format,
                "sessions": summary.sessions,
                "roots": summary.roots,
                "requests": summary.requests,
                "about": _about(name),
            }
        )
    return rows


def _about(name: str) -> str:
    return {
        "chat": "30 synthetic chats: short messages, reading times, 0.5 conversations/s",
        "coding-agent-team": "12 synthetic coding agents with sub-agents and branches: forks, spawns, joins, tool waits",
        "rag": "30 synthetic conversations over shared documents",
        "coding-agent": "50 synthetic coding agents, token ids with shared prefixes, tool waits, 0.2 sessions/s",
        "dag-agent-team": "spawns with joins, a delayed join, background and final forks, a pre-session spawn",
        "dag-example": "one root that forks into two branches",
        "dag-rounds": "a request-less orchestrator: three rounds with think times",
        "dag-three-roots": "three roots that fork twice each",
        "mixed-flat-agentic": "single requests and agent sessions in one file, counts only",
        "replay-example": "whole request bodies, sent unchanged",
    }.get(name, "")


def studies() -> list[Row]:
    """Return the rows of the bundled studies."""
    rows = []
    for path in sorted(BUNDLED_DIRECTORY.glob("*.yaml")):
        study = read_study(str(path))
        rows.append(
            {
                "name": f"{BUNDLED}{path.stem}",
                "about": study.name,
                "points": len(study.points),
                "varied": study.varied,
                "file": str(path),
            }
        )
    return rows


def formats() -> list[Row]:
    """Return the rows of the formats of workload files."""
    return [
        {
            "name": f.name,
            "also": list(f.aliases),
            "holds": f.summary,
            "needs": f.needs,
            "fetch": f.fetch,
            "options": [option.name for option in f.options],
            "options_in_full": [asdict(option) for option in f.options],
        }
        for f in FORMATS.values()
    ]

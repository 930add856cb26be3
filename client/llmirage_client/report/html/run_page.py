"""The page of a run, or of several beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version

from llmirage_client.measure.record import RunResult
from llmirage_client.measure.run_folder import ClusterLevels
from llmirage_client.report.console import reading_notes
from llmirage_client.report.html import run_sections, run_summary
from llmirage_client.report.html.comparison import comparison_page
from llmirage_client.report.html.page import PageHead, page
from llmirage_client.report.html.run_sections import cluster_section
from llmirage_client.report.html.run_view import RunView, view_run
from llmirage_client.report.html.swimlane import swimlane
from llmirage_client.report.load_points import LoadSweep


def run_page(
    runs: Sequence[tuple[str, RunResult]],
    clusters: Mapping[str, ClusterLevels] | None = None,
    sweep: LoadSweep | None = None,
) -> str:
    """Return one HTML document. runs: name and result of each; the name matters only among several.

    clusters: by name of a run, what its cluster did, where known; it is only on the page of a single run.
    sweep: what the sweep that made the runs says of them.
    """
    views = [view_run(result, name) for name, result in runs]
    if len(views) > 1:
        return comparison_page(views, sweep)
    return single_page(views[0], (clusters or {}).get(runs[0][0]))


def single_page(view: RunView, cluster: ClusterLevels | None = None, *, brief: bool = False) -> str:
    """Return the page of one run. brief: the first charts only, as a notebook shows them."""
    parts = [
        run_sections.distributions(view),
        run_sections.timeline(view),
        *([cluster_section(cluster)] if cluster is not None else []),
    ]
    if not brief:
        parts += [
            swimlane(view),
            run_sections.groups(view),
            run_sections.dependence(view),
            run_sections.errors(view),
            run_sections.slowest(view),
        ]
    parts.append(run_sections.run_notes(view, reading_notes(view.result, view.metrics)))
    title = " on ".join(text for text in (view.result.workload_path, view.result.model) if text) or "A run"
    head = PageHead(title, run_summary.facts(view), run_summary.verdicts(view), run_summary.cards(view))
    return page(head, parts, f"Written by llmirage {version('llmirage')} from the records of the run.")

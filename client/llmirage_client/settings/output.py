"""Settings of workers, of points of load, of reports, and of comparisons of runs."""

from __future__ import annotations

import contextlib
import math
import re
from dataclasses import dataclass
from typing import Literal

from llmirage_shared.command_line import OPTIONS
from llmirage_shared.settings import at_call, cannot_be_file, cannot_be_folder, setting, switch, under

POINTS = "Sweeps and searches (a list of loads above makes a sweep)"
_points = under(POINTS)


@dataclass(frozen=True, kw_only=True)
class PointSettings:
    """What a sweep and a search need besides the load of each point."""

    stop_at_saturation: bool = switch(POINTS, "End a sweep at the first saturated point (docs/load.md defines saturation).")
    find_max: str | None = _points(
        None,
        'Search for the highest load that meets these objectives, such as "ttft_p99<500ms,tpot_p95<30ms", by '
        "doubling and bisection.",
        aliases=("sla_params",),
        metavar="SLO",
        usual=True,
    )
    find_max_variable: Literal["concurrency", "rate", "parallel", "request_rate"] | None = _points(
        None, "What --find-max varies.", hidden=("sla_variable",), unset="rate with --request-rate, else concurrency"
    )
    find_max_lower_bound: float | None = _points(
        None, "Lowest load to try.", hidden=("sla_lower_bound",), above=0, unset="1; a hundredth of the first rate"
    )
    find_max_upper_bound: float = _points(
        1024.0, "Highest load to try.", hidden=("sla_upper_bound",), above=0, infinite=True
    )
    find_max_precision: float = _points(0.05, "Relative precision of the answer.", least=0.001, most=1)
    sleep_interval: float = _points(0.0, "Pause between points.", metavar="S", least=0, carried=True)
    audit: Literal["output_caching_test"] | None = _points(
        None,
        "Run MLPerf's audit (TEST04) instead: distinct samples, then one of them repeated, which must not be faster "
        "(docs/agentx.md).",
        unset="none",
    )
    audit_sample_index: int = _points(0, "Sample of the workload, from 0, that the audit repeats.", least=0)
    audit_threshold: float = _points(
        0.1, "Share by which the repeated sample may be faster in the audit, and that may be missing.", above=0, most=0.99
    )


def not_a_share(text: str) -> str | None:
    """Say why this is not a part of a load; None: it is one."""
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    return None if found and int(found[1]) < int(found[2]) else f"must be from 0/N to N-1/N, such as 0/8, not {text!r}"


WORKERS, REPORT = "Workers (docs/scaling.md)", "Report"
_workers, _report = under(WORKERS), under(REPORT)


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """One run over several processes or machines."""

    executor: Literal["process", "ray"] | None = _workers(
        None,
        "Send the load from several workers: processes on this machine, or actors of a Ray cluster (pip install "
        "'llmirage[ray]').",
        unset="one process",
        flag=True,
    )
    workers: int | None = _workers(
        None,
        "Number of workers.",
        least=1,
        unset="one per CPU, or one per machine of the Ray cluster",
        needs="{} needs {executor}: process or ray",
        flag=True,
    )
    ray_address: str | None = _workers(
        None,
        "Address of the Ray cluster, as for ray.init; `local` starts one for this run.",
        metavar="ADDRESS",
        unset="RAY_ADDRESS, else a running local cluster, else local",
    )
    share: str | None = _workers(
        None,
        "Part of the load that this process sends, of as many started with the same settings: 0/8 to 7/8.",
        metavar="INDEX/NUMBER",
        check=not_a_share,
        unset="all",
        needs="{} needs {random_seed}: all processes draw the same load",
    )


@dataclass(frozen=True, kw_only=True)
class ReportSettings:
    """Settings of the files and figures of a run."""

    artifact_dir: str | None = _report(
        None,
        "Folder for the files of the run.",
        aliases=("output_artifact_dir",),
        metavar="DIR",
        check=cannot_be_folder,
        unset="a new one below artifacts, to which artifacts/latest links",
        usual=True,
    )
    overwrite: bool = switch(REPORT, "Replace the files of an earlier run in --artifact-dir.", flag=True)
    slo: str | None = _report(
        None,
        'Objectives of the run, such as "ttft_p99<500ms,error_rate<1%": the report begins with the verdict, and the exit '
        "status is 3 if one is missed (docs/load.md has the form).",
        metavar="SLO",
        check=at_call("llmirage_client.measure.slo:slo_problem"),
        joined=True,
        usual=True,
    )
    junit: str | None = _report(
        None,
        "Write the verdicts as JUnit XML, a test case for each objective.",
        metavar="FILE",
        check=cannot_be_file,
        needs="{} needs {slo}: it has a test case for each objective",
        flag=True,
    )
    metric: tuple[str, ...] = _report(
        (),
        "Report a metric of your own, module:NAME; may be repeated. Those of installed distributions need no naming.",
        metavar="MODULE:NAME",
        check=at_call("llmirage_client.measure.catalogue:own_metrics_problem"),
        unset="none",
    )
    goodput: str | None = _report(
        None,
        'Report goodput, the requests that meet every limit, such as "ttft:200 tpot:15" in ms; names: ttft, ttst, '
        "ttfo, tpot, latency, tps_per_user, or a tag from docs/metrics.md.",
        metavar='"NAME:LIMIT ..."',
        check=at_call("llmirage_client.measure.request_metrics:goodput_problem"),
        carried=True,
    )
    otel: bool = switch(
        REPORT, "Write client spans and metrics by OpenTelemetry's gen_ai conventions, too (docs/artifacts.md)."
    )
    slice_duration: float | None = _report(
        None, "Write the metrics of each S seconds of the run to separate files.", metavar="S", above=0, carried=True
    )


class PageOutput:
    """The page of a run."""

    open: bool = switch(REPORT, "Write the HTML report too, and open it in the browser.", flag=True)


def _tolerance(text: str | float) -> float:
    """Return a share, from percent with or without the sign. Raises ValueError."""
    with contextlib.suppress(ValueError):
        if 0 <= (percent := float(str(text).removesuffix("%"))) < math.inf:
            return percent / 100
    raise ValueError(f"must be a number of percent from 0 up, such as 5%, not {text!r}")


@dataclass(frozen=True, kw_only=True)
class CompareSettings:
    """Settings of `llmirage compare`. fail_if_worse: a share; None: no run fails."""

    confidence: float = setting(95.0, OPTIONS, "Confidence level of the intervals.", metavar="PERCENT", least=50, most=99.9)
    fail_if_worse: float | None = setting(
        None,
        OPTIONS,
        "Exit with status 1 if a metric is worse than the baseline's by more than chance and this tolerance; without a "
        "value the tolerance is 0. Of 50 pairs of runs of one system about one fails by chance.",
        metavar="[PERCENT]",
        read=_tolerance,
    )

"""Which processes send the load, and what is reported where."""

from __future__ import annotations

from typing import Literal

from llmirage_client.settings.places import cannot_be_folder
from llmirage_shared.settings import at_call, under

WORKERS, REPORT = "Workers (docs/scaling.md)", "Report"
_workers, _report = under(WORKERS), under(REPORT)


class WorkerSettings:
    """One run over several processes or machines."""

    executor: Literal["process", "ray"] | None = _workers(
        None,
        "Let several workers send the load, as one run: processes of this machine, or actors of a Ray cluster (pip install "
        "'llmirage[ray]').",
        unset="this process alone",
    )
    workers: int | None = _workers(
        None,
        "How many, at most as many as have something to do.",
        least=1,
        unset="one a CPU here, one a machine of the cluster",
        needs="{} says how many, and {executor} process or ray has to say of what",
    )
    ray_address: str | None = _workers(
        None,
        "The cluster, as ray.init has it; `local` starts one here for this run.",
        metavar="ADDRESS",
        unset="RAY_ADDRESS, else the one that runs here, else local",
    )


class ReportSettings:
    """Files and figures of a run."""

    artifact_dir: str | None = _report(
        None, "Where the files go.", metavar="DIR", check=cannot_be_folder, unset="artifacts/MODEL-ENDPOINT-LOAD"
    )
    goodput: str | None = _report(
        None,
        'Also count the requests that met every limit, such as "ttft:200 tpot:15" in ms; names are ttft, ttst, ttfo, tpot, '
        "latency, tps_per_user or a tag of docs/metrics.md.",
        metavar='"NAME:LIMIT ..."',
        check=at_call("llmirage_client.measure.goodput:goodput_problem"),
    )
    slice_duration: float | None = _report(
        None, "Also write the metrics of each S seconds of the run, in files of their own.", metavar="S", above=0
    )

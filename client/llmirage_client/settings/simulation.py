"""Simulations of one cluster: how long, how, and what they print."""

from __future__ import annotations

from typing import Literal

from llmirage_client.settings.places import cannot_be_file
from llmirage_shared.settings import switch, under

SIMULATION = "Simulation"
_simulation = under(SIMULATION)


class SimulationSettings:
    via: Literal["engine", "api"] = _simulation(
        "engine",
        "Simulate the engine alone, or the server's whole API in this process: slower, with the same times.",
        usual=True,
    )
    max_time: float | None = _simulation(
        None, "Stop after S seconds of cluster time.", metavar="S", above=0, infinite=True, study=True, usual=True
    )
    steady_state: bool = _simulation(
        False,
        "Measure --requests requests after the cluster has filled up and while the load is on, of conversations that do not "
        "know of each other; needs a request rate or a concurrency, and requests in token counts.",
        study=True,
    )
    trace: str | None = _simulation(
        None,
        "Write every step and request as a Chrome trace for https://ui.perfetto.dev.",
        metavar="FILE",
        check=cannot_be_file,
    )
    records: bool | None = _simulation(
        None,
        "Write the records of single requests, too, for `llmirage report` and `compare`: kilobytes each.",
        unset="of up to 10,000 requests",
    )
    json: bool = switch(SIMULATION, "Print only the summary, as JSON; write files only with --artifact-dir.", usual=True)

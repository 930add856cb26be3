"""`llmirage calibrate`: an engine file whose simulated cluster behaves as a measured one."""

from __future__ import annotations

from llmirage_client.settings.places import cannot_be_file
from llmirage_client.simulator.cluster_flags import cluster_options
from llmirage_shared.command_line import argument, command, options
from llmirage_shared.settings import switch, under

CALIBRATION = "Calibration"
_calibration = under(CALIBRATION)


class CalibrationSettings:
    output: str = _calibration(
        "calibrated.yaml", "The engine file to write, for --engine.", short="o", metavar="FILE", check=cannot_be_file
    )
    fit: tuple[str, ...] = _calibration(
        (),
        "Fit this factor; may be given several times.",
        choices=("decode", "prefill", "host", "front-end"),
        unset="all that the runs can tell",
    )
    json: bool = switch(CALIBRATION, "Print a JSON object instead of tables.")


calibrate = command(
    "calibrate",
    "llmirage_client.commands.actions.calibrate:calibrate",
    [argument("runs", "RUN...", many=True), *options(CalibrationSettings), *cluster_options()],
    """Fit an engine profile to measured RUNs against one deployment: the folder of `llmirage run` or AIPerf, the JSON of
    `vllm bench serve --save-result --save-detailed`, or evalscope's benchmark_data.db.

    Say which deployment that was (--model, --gpu, --engine ...). The runs' own requests are simulated with changed factors
    until their times agree. Exit status 2 when a run or the cluster was refused.
    """,
)

"""What `llmirage run` does: a run, a sweep over several loads, or a search for the highest one."""

from __future__ import annotations

import sys
from typing import Any

from llmirage_client.commands.actions.endpoint import endpoint_of, for_endpoint
from llmirage_client.commands.actions.execute import execute
from llmirage_client.commands.actions.execute_points import Loads, execute_search, execute_sweep
from llmirage_client.commands.actions.points import conversations_wanted, search_of, sweep_points
from llmirage_client.commands.actions.spread import Spread
from llmirage_client.commands.actions.workload import load_workload, readable
from llmirage_client.settings.run import one_point, run_options


def run(file: str, **settings: Any) -> None:
    endpoint = endpoint_of(settings)
    with readable():
        workload = load_workload(file, settings, conversations_wanted(settings))
    options = run_options(workload, settings)
    workload = for_endpoint(workload, settings)
    spread = None
    if settings["executor"] is not None:
        spread = Spread(settings["executor"], settings["workers"], settings["ray_address"])
    search, points = search_of(settings), sweep_points(workload, settings)
    if search:
        settings |= {search.variable: (search.start,), "fixed_schedule": False}
        options = run_options(workload, settings, seed=options.seed)
    shown = {name: value for name, value in one_point(settings).items() if value not in (None, ())}
    if points or search:
        loads = Loads(workload, options, endpoint, shown, settings["artifact_dir"], settings["sleep_interval"], spread)
        sys.exit(execute_search(loads, search) if search else execute_sweep(loads, points, settings["stop_at_saturation"]))
    shown |= {"concurrency": options.concurrency, "fixed_schedule": options.fixed_schedule}
    sys.exit(execute(workload, options, endpoint, settings["artifact_dir"], shown, spread))

"""A simulation of a workload in token counts without branches: no event loop, no tasks, no protocol."""

from __future__ import annotations

import time

from llmirage_client.load.any_runner import AnyRunner
from llmirage_client.load.identifiers import Identifiers
from llmirage_client.load.options import RunOptions
from llmirage_client.measure.record import RunResult
from llmirage_client.simulate.token_rows import TokenRows
from llmirage_client.simulate.walk import WalkTools
from llmirage_client.simulate.walk_loop import WalkLoop
from llmirage_client.simulate.walk_phase import WalkPhase
from llmirage_client.simulator.engine import ClusterRun
from llmirage_client.workload.session import Workload


class WalkRunner(AnyRunner):
    """recorder: has the rows. named: whether the cluster routes by the names of conversations."""

    def __init__(self, workload: Workload, options: RunOptions, cluster: ClusterRun, named: bool = True) -> None:
        super().__init__(workload, options)
        self.loop = WalkLoop(cluster)
        self.recorder = TokenRows(Identifiers(options.seed))
        self._tools = WalkTools(self.loop, options, self.recorder, named)

    def over(self) -> int:
        """Requests that are over."""
        return len(self.recorder.rows)

    def interrupt(self, reason: str) -> None:
        """As `cancel`, from a signal handler: as soon as what is being done is done."""
        self.loop.soon(lambda: self.cancel(reason))

    def run(self) -> RunResult:
        """Raises VirtualDeadlockError and StandstillError."""
        for name, options, rng in self._phases():
            start_s, start_unix_s = self.loop.now, time.time()
            phase = WalkPhase(name, self._workload, options, self._sampler, self._tools, rng)
            self._begin(phase)
            phase.run()
        return self._result(phase, (start_s, start_unix_s, self.loop.now), [], {"completions"}, [])


def can_walk(workload: Workload, options: RunOptions) -> bool:
    """Whether a workload in token counts can go this way."""
    return not workload.branching and not options.cancellation_share and options.share.of == 1

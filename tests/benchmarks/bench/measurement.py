"""What a benchmark is, and how it is measured: always several times, each time between two runs of the calibration loop."""

import gc
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from bench.calibration import pass_cost_s

WARM_UP = 0.1  # share of the work that loads modules, catalogues and caches before anything counts


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds that so many units of work took."""

    cpu_s: float
    units: float


Work = Callable[[float], Cost]
"""Does a share of the whole work (1.0: all of it) and says what that cost."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """A named benchmark. open: sets up what it needs (a server, an endpoint) and gives the work.

    unit: what one unit of the work is. beside: another measurement whose cost this one's is shown as a multiple of.
    """

    name: str
    unit: str
    about: str
    open: Callable[[], AbstractContextManager[Work]]
    beside: str | None = None


MEASUREMENTS: dict[str, Measurement] = {}


def measures(unit: str, beside: str | None = None) -> Callable[[Callable[[], Iterator[Work]]], None]:
    """Registers a generator that sets up, yields the work and tears down, by its module and name: `client_json`."""

    def register(function: Callable[[], Iterator[Work]]) -> None:
        name = _name_of(function)
        about = (function.__doc__ or "").strip()
        MEASUREMENTS[name] = Measurement(name, unit, about, contextmanager(function), beside)

    return register


@dataclass(frozen=True, slots=True)
class Limit:
    """A figure that is no cost and must not exceed a bound: the error of a clock, a size."""

    name: str
    unit: str
    at_most: float
    about: str
    value: Callable[[], float]


LIMITS: dict[str, Limit] = {}


def limits(unit: str, at_most: float) -> Callable[[Callable[[], float]], None]:
    """Registers a function that works out such a figure."""

    def register(function: Callable[[], float]) -> None:
        name = _name_of(function)
        LIMITS[name] = Limit(name, unit, at_most, (function.__doc__ or "").strip(), function)

    return register


def _name_of(function: Callable[[], object]) -> str:
    return f"{function.__module__.rpartition('.')[2]}_{function.__name__}"


@dataclass(frozen=True, slots=True)
class Repetition:
    """One measurement: seconds a unit, and those in passes of the calibration loop before and after it."""

    cost_s: float
    ratio: float


def repetitions(measurement: Measurement, count: int) -> list[Repetition]:
    """Measure `count` times in this process, after a warm-up."""
    found = []
    with measurement.open() as work:
        work(WARM_UP)
        gc.collect()
        before_s = pass_cost_s()
        for _ in range(count):
            cost = work(1.0)
            after_s = pass_cost_s()
            cost_s = cost.cpu_s / cost.units
            found.append(Repetition(cost_s, cost_s / ((before_s + after_s) / 2)))
            before_s = after_s
    return found


def own_cpu(work: Callable[[], float]) -> Cost:
    """What some work costs this process; it returns how many units it did."""
    begun_s = time.process_time()
    units = work()
    return Cost(time.process_time() - begun_s, units)


def children_cpu_s() -> float:
    """CPU seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime

"""How far a simulated figure is from its limit, against how far the model has been from measured servers.

safe: it would still meet its objective if the model were as wrong as in the worst tenth of comparable runs. marginal: if it
were as wrong as in the median run, but not as in the worst tenth. not proven: not even that, or there is nothing to compare.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from llmirage_client.measure.slo import Verdict
from llmirage_client.simulator.accuracy import Band, band_of
from llmirage_client.simulator.engine import ClusterConfig

Word = Literal["safe", "marginal", "not proven"]
_RANK: dict[Word, int] = {"safe": 0, "marginal": 1, "not proven": 2}

# Which of the compared metrics a figure goes by.
_COMPARED = {
    "time_to_first_token": "ttft",
    "first_turn_time_to_first_token": "ttft",
    "subsequent_turn_time_to_first_token": "ttft",
    "inter_token_latency": "tpot",
    "inter_chunk_latency": "tpot",
    "output_token_throughput_per_user": "tpot",
    "request_latency": "latency",
    "request_throughput": "latency",
    "output_token_throughput": "latency",
    "total_token_throughput": "latency",
}


@dataclass(frozen=True, slots=True)
class Proof:
    """median, p90: of the absolute error of the model, shares of the measured value. of: the runs that were compared."""

    word: Word
    about: str
    median: float | None = None
    p90: float | None = None
    of: str | None = None

    @property
    def rank(self) -> int:
        """0 is best."""
        return _RANK[self.word]

    @property
    def band_text(self) -> str:
        return "not known" if self.p90 is None else f"{self.median:.0%}, p90 {self.p90:.0%}"


def proof_of(verdict: Verdict, config: ClusterConfig) -> Proof:
    band = band_of(config)
    compared = _COMPARED.get(verdict.objective.metric.tag)
    if band is None or compared is None or verdict.value is None:
        why = "no run of a real server was compared" if band is None else f"{verdict.objective.name} was never compared"
        return Proof("not proven", why)
    error = band.errors[compared]
    word: Word = "not proven"
    if _holds(verdict, error.p90):
        word = "safe"
    elif _holds(verdict, error.median):
        word = "marginal"
    if band.caution:  # nothing like it was measured: a good word would promise too much
        word = "not proven" if word == "marginal" else "marginal" if word == "safe" else word
    return Proof(word, _about(band), error.median, error.p90, band.of)


def _holds(verdict: Verdict, error: float) -> bool:
    """Whether the objective is met if ours is off by that share of the measured value, to the worse side."""
    assert verdict.value is not None
    if verdict.objective.comparison[0] == "<":
        return error < 1 and verdict.objective.met_by(verdict.value / (1 - error))
    return verdict.objective.met_by(verdict.value / (1 + error))


def _about(band: Band) -> str:
    more = f"; {band.caution}" if band.caution else ""
    return f"Errors: median and 90th percentile of {band.runs} measured runs of {band.of} (docs/accuracy.md){more}."

"""The answer of `llmirage size --max-rate` for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llmirage_client.measure.slo import Objective
from llmirage_client.report.tables import plain_table
from llmirage_client.simulator.deployments import hourly_usd, models_of, summary_line
from llmirage_client.simulator.engine import ClusterConfig
from llmirage_client.size.max_rate import Carried, MaxRates
from llmirage_client.size.proof import Proof, proof_of
from llmirage_client.size.report import effort, shape_json, shape_name, usd, verdicts_json, worst
from llmirage_client.size.traffic import Traffic

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, slots=True)
class Report:
    found: MaxRates
    base: ClusterConfig
    traffic: Traffic
    objectives: Sequence[Objective]
    prices: Mapping[str, float]
    price_source: str
    notes: Sequence[str] = ()

    @property
    def unit(self) -> str:
        return "req/s" if self.traffic.kind == "request_rate" else "users at once"

    def json(self) -> dict[str, Any]:
        return {
            "model": models_of(self.base),
            "requests": self.traffic.source.text,
            "kind": self.traffic.kind,
            "slo": [objective.text for objective in self.objectives],
            "carried": [self._carried_json(carried) for carried in self.found.carried],
            "refused": [{**shape_json(one.shape), "reason": one.reason} for one in self.found.refused],
            "notes": list(self.notes),
            "price_source": self.price_source,
            "simulations": self.found.simulations,
            "simulated_requests": self.found.requests,
            "cpu_s": round(self.found.cpu_s, 3),
        }

    def _carried_json(self, carried: Carried) -> dict[str, Any]:
        trial, beyond = carried.trial, carried.beyond
        return {
            **({} if carried.shape is None else shape_json(carried.shape)),
            "instances": sum(pool.instances for pool in carried.config.all_pools),
            "amount": None if trial is None else trial.amount,
            "per_gpu": None if trial is None else trial.amount / trial.figures["gpus"],
            "usd_per_m_output_tokens": self.usd_per_m(carried),
            "objectives": [] if trial is None else verdicts_json(trial, proofs(carried)),
            "binding": None if beyond is None else {"amount": beyond.amount, "reason": beyond.reason},
            "reason": carried.reason,
            "figures": None if trial is None else trial.figures,
        }

    def blocks(self) -> Iterator[RenderableType]:
        from rich.text import Text

        yield f"{models_of(self.base)}: {self.traffic.source.text}"
        yield f"Objectives: {', '.join(objective.text for objective in self.objectives)}"
        yield ""
        carried = [one for one in self.found.carried if one.trial is not None]
        if not carried:
            yield Text("Nothing meets the objectives, at any load.", style="bold red")
        for one in carried:
            assert one.trial is not None
            yield Text(f"{self.name(one)}: {one.trial.amount:,.4g} {self.unit}", style="bold")
            if one.beyond is not None:
                yield f"  at {one.beyond.traffic}: {one.beyond.reason}"
        if carried:
            yield ""
            yield self._table(carried)
            yield f"per GPU: {self.unit}; USD/M: per million output tokens; used: share of the tightest objective's limit"
            yield ""
            yield from dict.fromkeys(proof.about for one in carried for proof in proofs(one))
        for one in self.found.carried:
            if one.trial is None:
                yield f"{self.name(one)}: {one.reason}"
        for refused in self.found.refused:
            yield f"{shape_name(refused.shape)}: cannot be: {refused.reason}"
        yield from (f"Note: {note}" for note in self.notes)
        yield f"Prices: {self.price_source}"
        yield effort(self.found.simulations, self.found.requests, self.found.cpu_s)

    def _table(self, carried: Sequence[Carried]) -> RenderableType:
        table = plain_table("deployment", "GPUs", "per GPU", "tok/s/GPU", "USD/M", "tightest", "used", "verdict")
        for one in carried:
            assert one.trial is not None
            figures, tightest = one.trial.figures, one.trial.tightest
            table.add_row(
                self.name(one),
                str(figures["gpus"]),
                f"{one.trial.amount / figures['gpus']:,.3g}",
                f"{figures['output_tok_per_s_per_gpu']:,.0f}",
                usd(self.usd_per_m(one)),
                "-" if tightest is None else tightest.objective.text,
                "-" if tightest is None else f"{tightest.load:.0%}",
                worst(proofs(one)).word,
            )
        return table

    def name(self, carried: Carried) -> str:
        if carried.shape is None:
            return summary_line(carried.config)
        return f"{carried.config.instances} x {shape_name(carried.shape)}"

    def usd_per_m(self, carried: Carried) -> float | None:
        """USD for a million output tokens; None where a price is not known."""
        if carried.trial is None:
            return None
        usd_per_h = hourly_usd(carried.config, self.prices)
        tokens_m_per_h = float(carried.trial.figures["output_tok_per_s"]) * 3600 / 1e6
        return None if usd_per_h is None or not tokens_m_per_h else usd_per_h / tokens_m_per_h

    def page(self) -> str:
        from llmirage_client.size.page import max_rate_page

        return max_rate_page(self)


def proofs(carried: Carried) -> list[Proof]:
    if carried.trial is None:
        return []
    return [proof_of(verdict, carried.config) for verdict in carried.trial.verdicts]

"""The answer of `llmirage size` for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llmirage_client.measure.slo import Objective, Verdict
from llmirage_client.report.numbers import plural
from llmirage_client.report.tables import plain_table
from llmirage_client.simulator.deployments import Shape
from llmirage_client.simulator.engine import ClusterConfig
from llmirage_client.size.need import SLICE, Need
from llmirage_client.size.proof import Proof, proof_of
from llmirage_client.size.sizing import Priced, Sizing
from llmirage_client.size.traffic import Traffic
from llmirage_client.size.trial import FEW_REQUESTS, Trial

if TYPE_CHECKING:
    from rich.console import RenderableType

_REASONS_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Report:
    """price_source: where prices come from."""

    sizing: Sizing
    base: ClusterConfig
    traffic: Traffic
    objectives: Sequence[Objective]
    price_source: str
    notes: Sequence[str] = ()

    def json(self) -> dict[str, Any]:
        sizing = self.sizing
        return {
            "model": self.base.model,
            "traffic": {
                "kind": self.traffic.kind,
                "amount": self.traffic.amount,
                "requests": self.traffic.source.text,
            },
            "slo": [objective.text for objective in self.objectives],
            "goal": sizing.goal,
            "answer": None if sizing.answer is None else priced_json(sizing.answer, self.base),
            "runners_up": [priced_json(priced, self.base) for priced in sizing.runners_up],
            "given_up": [{**shape_json(need.shape), "reason": need.reason} for need in sizing.given_up],
            "not_looked_at": [{**shape_json(shape), "at_least_instances": least} for shape, least in sizing.left],
            "refused": [{**shape_json(one.shape), "reason": one.reason} for one in sizing.refused],
            "notes": list(self.notes),
            "price_source": self.price_source,
            "simulations": sizing.simulations,
            "simulated_requests": sizing.requests,
            "cpu_s": round(sizing.cpu_s, 3),
        }

    def blocks(self) -> Iterator[RenderableType]:
        from rich.text import Text

        sizing, answer = self.sizing, self.sizing.answer
        yield f"{self.base.model}, {self.traffic.text}: {self.traffic.source.text}"
        yield f"Objectives: {', '.join(objective.text for objective in self.objectives)}"
        yield ""
        if answer is None:
            yield Text("Nothing meets the objectives.", style="bold red")
            yield from self._why_nothing()
        else:
            yield Text(answer_line(answer), style="bold")
            yield from self._details(answer)
            yield ""
            yield from self._others()
        yield ""
        yield from self._left_out()
        yield from (f"Note: {note}" for note in self.notes)
        yield effort(sizing.simulations, sizing.requests, sizing.cpu_s)

    def page(self) -> str:
        from llmirage_client.size.page import page_of

        return page_of(self)

    def _details(self, answer: Priced) -> Iterator[RenderableType]:
        trial = answer.fit.trial
        table = plain_table("objective", "simulated", "of the limit", "error of the model", "verdict")
        proofs = proofs_of(answer, self.base)
        for verdict, proof in zip(trial.verdicts, proofs, strict=True):
            table.add_row(
                verdict.objective.text,
                value_text(verdict),
                f"{verdict.load:.0%}",
                proof.band_text,
                proof.word,
            )
        yield table
        yield ""
        tightest = trial.tightest
        if tightest is not None:
            yield f"Binding: {tightest.objective.text}, met with {max(0.0, 1 - tightest.load):.0%} of its limit to spare."
        yield from dict.fromkeys(proof.about for proof in proofs)
        yield from notes_of(answer, self.traffic)

    def _others(self) -> Iterator[RenderableType]:
        if not self.sizing.runners_up:
            return
        table = plain_table("runners-up", "GPUs", "USD/h", "tightest", "of its limit", "verdict")
        for priced in self.sizing.runners_up:
            tightest = priced.fit.trial.tightest
            table.add_row(
                name_of(priced),
                str(priced.gpus),
                usd(priced.usd_per_h),
                "-" if tightest is None else tightest.objective.text,
                "-" if tightest is None else f"{tightest.load:.0%}",
                worst(proofs_of(priced, self.base)).word,
            )
        yield table

    def _why_nothing(self) -> Iterator[RenderableType]:
        near = nearest(self.sizing.given_up)
        if near is not None:
            need, verdict = near
            yield (
                f"The nearest was {shape_name(need.shape)}: {verdict.objective.text} came to {value_text(verdict)}, "
                f"{verdict.load:,.1f} times its limit."
                if verdict.load < 1e6
                else f"The nearest was {shape_name(need.shape)}."
            )
        if self.sizing.left:
            yield "More GPUs than --max-gpus allows: " + "; ".join(
                f"{shape_name(shape)} needs {least} instances or more" for shape, least in self.sizing.left
            )

    def _left_out(self) -> Iterator[RenderableType]:
        given_up = self.sizing.given_up
        for need in given_up[:_REASONS_SHOWN]:
            yield f"{shape_name(need.shape)}: {need.reason}"
        if len(given_up) > _REASONS_SHOWN:
            yield f"... and {len(given_up) - _REASONS_SHOWN} more that no number of instances helps (--json has all)"
        for refused in self.sizing.refused[:_REASONS_SHOWN]:
            yield f"{shape_name(refused.shape)}: cannot be: {refused.reason}"
        if len(self.sizing.refused) > _REASONS_SHOWN:
            yield f"... and {len(self.sizing.refused) - _REASONS_SHOWN} more that cannot be (--json has all)"
        if self.sizing.answer is not None and self.sizing.left:
            names = ", ".join(f"{least} x {shape_name(shape)}" for shape, least in self.sizing.left)
            yield f"Dearer than the answer, and not looked at further: {names} or more"
        if self.sizing.answer is not None:
            yield f"Prices: {self.price_source}"


def answer_line(priced: Priced) -> str:
    cost = "" if priced.usd_per_h is None else f", {priced.usd_per_h:,.2f} USD/h"
    return f"{name_of(priced)}: {plural(priced.gpus, 'GPU')}{cost}"


def name_of(priced: Priced) -> str:
    return f"{priced.fit.instances} x {shape_name(priced.fit.shape)}"


def shape_name(shape: Shape) -> str:
    engine = "" if shape.engine is None else f" {shape.engine}"
    return f"{shape.gpu} {shape.split}{engine} {shape.weights}"


def shape_json(shape: Shape) -> dict[str, Any]:
    return {
        "gpu": shape.gpu,
        "engine": shape.engine,
        "weights": shape.weights,
        "tp": shape.tp,
        "pp": shape.pp,
        "dp": shape.dp,
        "ep": shape.ep,
    }


def priced_json(priced: Priced, base: ClusterConfig) -> dict[str, Any]:
    fit, trial = priced.fit, priced.fit.trial
    return {
        **shape_json(fit.shape),
        "instances": fit.instances,
        "gpus": fit.gpus,
        "usd_per_h": priced.usd_per_h,
        "objectives": verdicts_json(trial, proofs_of(priced, base)),
        "judged_at": {"instances": trial.config.instances, "amount": trial.amount},
        "figures": trial.figures,
    }


def verdicts_json(trial: Trial, proofs: Sequence[Proof]) -> list[dict[str, Any]]:
    return [
        {
            "objective": verdict.objective.text,
            "value": verdict.value,
            "limit": verdict.objective.limit,
            "unit": verdict.objective.metric.unit,
            "share_of_limit": verdict.load,
            "proof": proof.word,
            "error_median": proof.median,
            "error_p90": proof.p90,
            "errors_of": proof.of,
        }
        for verdict, proof in zip(trial.verdicts, proofs, strict=True)
    ]


def proofs_of(priced: Priced, base: ClusterConfig) -> list[Proof]:
    return [proof_of(verdict, priced.fit.trial.config) for verdict in priced.fit.trial.verdicts]


def worst(proofs: Sequence[Proof]) -> Proof:
    return max(proofs, key=lambda proof: proof.rank)


def notes_of(priced: Priced, traffic: Traffic) -> Iterator[str]:
    """What one should know of how the figures came about."""
    fit, trial = priced.fit, priced.fit.trial
    users = trial.figures["users"]
    yield (
        f"Under way at a time: {users:,.0f} requests, {users / trial.config.instances:,.1f} an instance. "
        f"Output tokens/s: {trial.figures['output_tok_per_s']:,.0f}."
    )
    if fit.sliced:
        yield f"Judged by {SLICE} of the {fit.instances} instances with {trial.traffic}, which is at least their share."
    elif trial.amount != traffic.amount:
        yield f"Judged by one instance with {trial.traffic}, which is more than its part of what was asked for."
    if trial.counted < FEW_REQUESTS:
        yield f"Only {plural(trial.counted, 'request')} counted: high percentiles of so few say little."


def nearest(needs: Sequence[Need]) -> tuple[Need, Verdict] | None:
    known = [(need, need.nearest) for need in needs if need.nearest is not None]
    return min(known, key=lambda pair: pair[1].load, default=None)


def value_text(verdict: Verdict) -> str:
    return "nothing" if verdict.value is None else f"{verdict.value:,.4g} {verdict.objective.metric.unit}"


def usd(price: float | None) -> str:
    return "-" if price is None else f"{price:,.2f}"


def effort(simulations: int, requests: int, cpu_s: float) -> str:
    return f"{plural(simulations, 'simulation')} of {requests:,} requests in all, {cpu_s:.1f} CPU s"

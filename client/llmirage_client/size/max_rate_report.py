"""The most traffic that deployments carry, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmirage_client.report.screen import Block, bold, plain_table
from llmirage_client.simulate.saturation import rates_text
from llmirage_client.simulator.deployments import OF_SPLIT, assumed, hourly_usd, models_of, summary_line
from llmirage_client.size.error_margin import least_confident, margins_of
from llmirage_client.size.max_rate import MaxRate
from llmirage_client.size.report import (
    Question,
    about_lines,
    refused_rows,
    shape_json,
    tightest_cells,
    usd,
    verdicts_json,
)
from llmirage_client.size.trial import Trial
from llmirage_shared.plural import rounded


@dataclass(frozen=True, slots=True)
class MaxRateReport:
    """prices: USD per hour of one GPU, by its name; of those that are known."""

    question: Question
    found: Sequence[MaxRate]
    prices: Mapping[str, float]

    @property
    def unit(self) -> str:
        return "req/s" if self.question.traffic.kind == "request_rate" else "users at once"

    @property
    def carried(self) -> list[tuple[MaxRate, Trial]]:
        """Deployments that meet the objectives at some load."""
        return [(one, one.trial) for one in self.found if one.trial is not None]

    @property
    def answered(self) -> bool:
        return bool(self.carried)

    @property
    def most_tried(self) -> str:
        """Return the note on a deployment that meets the objectives at the highest load tried."""
        by_rate = self.question.traffic.kind == "request_rate"
        why = "the roofline allows no more" if by_rate else "as many requests run at a time, by memory and limits"
        return f"the most that was tried: {why}"

    def left_out(self) -> list[tuple[str, str]]:
        """Name and reason of the others."""
        missed = [(self.name(one), one.reason) for one in self.found if one.trial is None]
        return missed + refused_rows(self.question.refused, self.question.explain)

    def json(self) -> dict[str, Any]:
        question = self.question
        return {
            "model": models_of(question.base),
            "requests": question.traffic.source.text,
            "kind": question.traffic.kind,
            "slo": [objective.text for objective in question.objectives],
            "carried": [self._json(one) for one in self.found],
            **question.end_json(),
        }

    def _json(self, one: MaxRate) -> dict[str, Any]:
        trial, beyond = one.trial, one.beyond
        return {
            **({} if one.shape is None else shape_json(one.shape)),
            "instances": sum(pool.instances for pool in one.config.all_pools),
            "amount": None if trial is None else trial.amount,
            "amount_between": one.between,
            "per_gpu": None if trial is None else trial.amount / trial.figures["gpus"],
            "usd_per_m_output_tokens": self.usd_per_m(one),
            "objectives": [] if trial is None else verdicts_json(trial, margins_of(trial)),
            "binding": None if beyond is None else {"amount": beyond.amount, "reason": beyond.reason},
            "most_tried": trial is not None and beyond is None,
            "reason": one.reason,
            "figures": None if trial is None else trial.figures,
        }

    def blocks(self) -> Iterator[Block]:
        question, carried = self.question, self.carried
        yield f"{models_of(question.base)}: {question.traffic.source.text}"
        yield from question.head_lines("the load")
        yield ""
        if not carried:
            yield bold("No deployment meets the objectives at any load.", bad=True)
        for one, trial in carried:
            yield bold(f"{self.name(one)}: {rounded(trial.amount)} {self.unit}")
            if one.between is not None and one.between != (trial.amount, trial.amount):
                low, high = one.between
                yield f"  {rounded(low)} to {rounded(high)}: the noise of the simulations cannot tell these apart"
            if trial.rates is not None:
                yield f"  {rates_text(trial.rates)}"
            if one.shape is not None:
                yield from (f"  assumed of it: {text}" for text in assumed(one.config, only=OF_SPLIT))
            if one.beyond is not None:
                yield f"  at {one.beyond.traffic}: {one.beyond.reason}"
            else:
                yield f"  {self.most_tried}"
        if carried:
            yield ""
            yield self._table(carried)
            yield f"per GPU: {self.unit}; USD/M: per million output tokens; used: share of the binding objective's limit"
            yield ""
            yield from about_lines(margin for _, trial in carried for margin in margins_of(trial))
        yield from (f"{name}: {reason}" for name, reason in self.left_out())
        *notes, effort = question.end_lines()
        yield from (*notes, f"Prices: {question.price_source}", effort)

    def _table(self, carried: Sequence[tuple[MaxRate, Trial]]) -> Block:
        table = plain_table("deployment", "GPUs", "per GPU", "tok/s/GPU", "USD/M", "tightest", "used", "verdict", ends=1)
        for one, trial in carried:
            table.add_row(
                self.name(one),
                str(trial.figures["gpus"]),
                rounded(trial.amount / trial.figures["gpus"], 3),
                f"{trial.figures['output_tok_per_s_per_gpu']:,.0f}",
                usd(self.usd_per_m(one)),
                *tightest_cells(trial),
                least_confident(margins_of(trial)),
            )
        return table

    def name(self, one: MaxRate) -> str:
        if one.shape is None:
            return summary_line(one.config)
        return one.shape.named(one.config.instances)

    def usd_per_m(self, one: MaxRate) -> float | None:
        """Return USD for a million output tokens; None where a price is not known."""
        if one.trial is None:
            return None
        usd_per_h = hourly_usd(one.config, self.prices)
        tokens_m_per_h = float(one.trial.figures["output_tok_per_s"]) * 3600 / 1e6
        return None if usd_per_h is None or not tokens_m_per_h else usd_per_h / tokens_m_per_h

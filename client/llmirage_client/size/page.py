"""The answers of `llmirage size` as HTML pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmirage_client.report.html.blocks import charts, figure, notes, table
from llmirage_client.report.html.charts import Axis, Point, pareto
from llmirage_client.report.html.page import Card, Head, Section, State, Verdict, page
from llmirage_client.simulator.deployments import models_of
from llmirage_client.size.proof import Word
from llmirage_client.size.report import (
    answer_line,
    effort,
    name_of,
    nearest,
    notes_of,
    proofs_of,
    shape_name,
    usd,
    value_text,
    worst,
)

if TYPE_CHECKING:
    from llmirage_client.size.max_rate_report import Report as MaxRateReport
    from llmirage_client.size.report import Report

_STATES: dict[Word, State] = {"safe": "good", "marginal": "warn", "not proven": "warn"}


def page_of(report: Report) -> str:
    sizing, answer = report.sizing, report.sizing.answer
    facts = {
        "Model": report.base.model,
        "Traffic": f"{report.traffic.text}: {report.traffic.source.text}",
        "Objectives": ", ".join(objective.text for objective in report.objectives),
    }
    sections: list[Section] = []
    cards: list[Card] = []
    if answer is None:
        near = nearest(sizing.given_up)
        reasons = [] if near is None else [f"Nearest: {shape_name(near[0].shape)}: {near[0].reason}"]
        verdict = Verdict("bad", "Nothing meets the objectives.", reasons)
    else:
        proofs = proofs_of(answer, report.base)
        verdict = Verdict(
            _STATES[worst(proofs).word],
            f"{answer_line(answer)}: {worst(proofs).word}",
            list(dict.fromkeys(proof.about for proof in proofs)),
        )
        cards = [Card("GPUs", str(answer.gpus))]
        if answer.usd_per_h is not None:
            cards.append(Card("Price", f"{answer.usd_per_h:,.2f}", "USD/h", report.price_source))
        cards += [
            Card(one.objective.text, value_text(one), hint=f"{one.load:.0%} of the limit")
            for one in answer.fit.trial.verdicts
        ]
        rows = []
        for priced in (answer, *sizing.runners_up):
            tightest = priced.fit.trial.tightest
            rows.append(
                [
                    name_of(priced),
                    priced.gpus,
                    usd(priced.usd_per_h),
                    "-" if tightest is None else f"{tightest.objective.text}, {tightest.load:.0%} of it",
                    worst(proofs_of(priced, report.base)).word,
                ]
            )
        columns = ["Deployment", "GPUs", "USD/h", "Tightest objective", "Verdict"]
        sections.append(
            Section("Answer and runners-up", [table(columns, rows), notes(list(notes_of(answer, report.traffic)))])
        )
    refused = [[shape_name(need.shape), need.reason] for need in sizing.given_up]
    refused += [[shape_name(one.shape), f"cannot be: {one.reason}"] for one in sizing.refused]
    refused += [[shape_name(shape), f"{least} instances or more: too dear"] for shape, least in sizing.left]
    if refused:
        sections.append(Section("Left out", [table(["Deployment", "Why"], refused, left=2, wrap=(1,))]))
    if report.notes:
        sections.append(Section("Notes", [notes(report.notes)]))
    foot = f"{effort(sizing.simulations, sizing.requests, sizing.cpu_s)}. Prices: {report.price_source}"
    return page(Head("Size of a deployment", facts, [verdict], cards), sections, foot)


def max_rate_page(report: MaxRateReport) -> str:
    found = [one for one in report.found.carried if one.trial is not None]
    points, rows = [], []
    for one in found:
        assert one.trial is not None
        figures, tpot = one.trial.figures, one.trial.figures["tpot_ms"]
        name = report.name(one)
        if tpot:
            gpu = "" if one.shape is None else one.shape.gpu
            points.append(Point(1e3 / tpot["mean"], figures["output_tok_per_s_per_gpu"], name, gpu))
        rows.append(
            [
                name,
                figures["gpus"],
                f"{one.trial.amount:,.4g}",
                f"{one.trial.amount / figures['gpus']:,.3g}",
                usd(report.usd_per_m(one)),
                "" if one.beyond is None else f"{one.beyond.traffic}: {one.beyond.reason}",
            ]
        )
    columns = ["Deployment", "GPUs", report.unit, f"{report.unit} a GPU", "USD per M output tokens", "What is missed next"]
    drawn = pareto(
        points,
        title="At the most that each carries",
        x=Axis("Speed of a user (1/TPOT)", "tokens/s"),
        y=Axis("Output tokens/s a GPU", "tokens/s"),
    )
    sections = [Section("What each carries", [charts(figure(drawn), size="half"), table(columns, rows, wrap=(5,))])]
    refused = [[report.name(one), one.reason] for one in report.found.carried if one.trial is None]
    refused += [[shape_name(one.shape), f"cannot be: {one.reason}"] for one in report.found.refused]
    if refused:
        sections.append(Section("Left out", [table(["Deployment", "Why"], refused, left=2, wrap=(1,))]))
    if report.notes:
        sections.append(Section("Notes", [notes(report.notes)]))
    facts = {
        "Model": models_of(report.base),
        "Requests": report.traffic.source.text,
        "Objectives": ", ".join(objective.text for objective in report.objectives),
    }
    foot = effort(report.found.simulations, report.found.requests, report.found.cpu_s)
    return page(Head("How much traffic a deployment carries", facts), sections, f"{foot}. Prices: {report.price_source}")

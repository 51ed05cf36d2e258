"""report.html: one self-contained page with pictures, tables and the SQL history. Pure; everything shown is escaped."""

import base64
from collections.abc import Iterable, Sequence
from html import escape
from statistics import median

from evenkeel.demo.observed.observations import Observations, QueryResult
from evenkeel.demo.observed.run_log import PlanSeen, VerdictSeen
from evenkeel.demo.report.expectations import Expectation
from evenkeel.demo.report.pictures import label_of
from evenkeel.demo.report.style import STYLE
from evenkeel.demo.report.summary import Event, Summary
from evenkeel.history.vocabulary import PlanState
from evenkeel.layouts.layout import Layout

PLANS_NOTE = (
    "<p>Seconds per iteration. <em>Bound</em> is the proportional bound: the sum of the live devices' speeds over the "
    "number of devices. <em>Seen</em> is the median that this page measured itself.</p>"
)


def render_report(
    seen: Observations,
    summary: Summary,
    expectations: Sequence[Expectation],
    pictures: Sequence[tuple[str, bytes]],
    *,
    facts: Sequence[tuple[str, str]] = (),
) -> str:
    """The whole page.

    Args:
        seen: The run.
        summary: Its figures.
        expectations: What should have held, and whether it did.
        pictures: (caption, PNG) in order.
        facts: (name, value) pairs about the run itself: seed, machine, durations.
    """
    failed = [expectation for expectation in expectations if not expectation.held]
    verdict = "everything held" if not failed else f"{len(failed)} of {len(expectations)} expectations did not hold"
    body = [
        "<h1>Evenkeel demo</h1>",
        f'<p class="headline {"bad" if failed else "good"}">{escape(verdict)}</p>',
        _facts(seen, summary, facts),
        *(_picture(caption, png) for caption, png in pictures),
        "<h2>Events</h2>",
        _events(seen, summary.events),
        "<h2>Plans: predicted against measured</h2>",
        PLANS_NOTE,
        _plans(seen),
        *(_plan_story(plan) for plan in seen.log.plans_newest()),
        "<h2>Verdicts</h2>",
        _verdicts(seen),
        "<h2>Expectations</h2>",
        _expectations(expectations),
        "<h2>The history, read back by SQL</h2>",
        *(_query(query) for query in (seen.history.queries if seen.history else ())),
        "<p class='note'>Speeds come from emulated devices: real training on CPU ranks, paced to a stated speed.</p>",
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Evenkeel demo</title><style>{STYLE}</style></head><body><main>\n"
        + "\n".join(body)
        + "\n</main></body></html>\n"
    )


def _facts(seen: Observations, summary: Summary, facts: Sequence[tuple[str, str]]) -> str:
    loss = summary.loss_max_relative_difference
    cards = [
        ("iterations", str(len(seen.iterations))),
        ("samples lost", str(summary.samples_lost)),
        ("samples repeated", str(summary.samples_repeated)),
        ("false verdicts", str(summary.false_verdicts)),
        ("loss off by at most", "unknown" if loss is None else f"{loss:.1e}"),
        *facts,
    ]
    return (
        '<dl class="cards">'
        + "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in cards)
        + "</dl>"
    )


def _picture(caption: str, png: bytes) -> str:
    data = base64.b64encode(png).decode()
    return (
        f'<figure><img alt="{escape(caption)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _events(seen: Observations, events: Sequence[Event]) -> str:
    rows = []
    for truth, event in zip(seen.truths, events, strict=True):
        rows.append(
            (
                label_of(truth),
                f"{event.injected_at - seen.started_at:.1f}",
                str(event.iteration),
                _number(event.culprit_found, "d"),
                _number(event.severity_true, ".2f"),
                _number(event.severity_found, ".3f"),
                _number(event.seconds_to_verdict, ".2f"),
                _number(event.iterations_to_verdict, "d"),
                _number(event.seconds_to_resume, ".2f"),
                _number(event.iteration_seconds_before, ".3f"),
                _number(event.iteration_seconds_during, ".3f"),
                _number(event.iteration_seconds_after, ".3f"),
            )
        )
    header = (
        "what was done",
        "at, s",
        "iteration",
        "rank found",
        "true speed",
        "found speed",
        "s to verdict",
        "iterations to verdict",
        "s to next step",
        "s/iteration before",
        "during",
        "after",
    )
    return _table(header, rows)


def _plans(seen: Observations) -> str:
    rows = []
    for plan in seen.log.plans_newest():
        own = [entry.seconds for entry in seen.iterations if entry.epoch == plan.epoch and entry.seconds][1:]
        own_median = median(own) if own else None
        measured = plan.measured_seconds or None
        error = (plan.predicted_seconds - measured) / measured if measured else None
        rows.append(
            (
                str(plan.epoch),
                " + ".join(dict.fromkeys(action.lever for action in plan.actions)) or "-",
                plan.state.value,
                _number(plan.idle_seconds or None, ".3f"),
                _number(plan.predicted_seconds, ".3f"),
                _number(measured, ".3f"),
                _number(error, "+.1%"),
                _number(own_median, ".3f"),
                _number(plan.proportional_bound, ".3f"),
                _number(plan.cost_seconds, ".3f"),
                _number(_application_seconds(seen, plan), ".3f"),
                _number(plan.solve_seconds * 1000, ".1f"),
            )
        )
    header = (
        "epoch",
        "levers",
        "state",
        "doing nothing",
        "predicted",
        "measured",
        "error",
        "seen",
        "bound",
        "cost predicted, s",
        "proposed to applied, s",
        "solved in, ms",
    )
    return _table(header, rows)


def _application_seconds(seen: Observations, plan: PlanSeen) -> float | None:
    states = seen.log.states_of(plan.plan_id)
    if PlanState.PROPOSED not in states or PlanState.APPLIED not in states:
        return None
    return states[PlanState.APPLIED].at - states[PlanState.PROPOSED].at


def _plan_story(plan: PlanSeen) -> str:
    actions = "".join(
        f"<li><code>{escape(action.lever)}</code> {escape(action.description)} "
        f"<span class='quiet'>({action.gain_seconds:+.3f} s per iteration won by it alone)</span></li>"
        for action in plan.actions
    )
    alternatives = _table(
        ("alternative", "predicted, s", "why it lost"),
        [
            (alternative.name, _number(alternative.predicted_seconds, ".3f"), alternative.reason)
            for alternative in plan.alternatives
        ],
    )
    return (
        f"<details><summary>Epoch {plan.epoch}: {escape(plan.reason or plan.plan_id)}</summary>"
        f"<ul>{actions}</ul>{_layout(plan.layout)}{alternatives if plan.alternatives else ''}</details>"
    )


def _layout(layout: Layout) -> str:
    """A layout as boxes: one row per replica, one box per stage, one cell per shard, as wide as its share."""
    rows = []
    for number, replica in enumerate(layout.replicas):
        stages = []
        for stage in replica.stages:
            cells = "".join(
                f'<span style="flex:{share}">rank {rank}<small>{share}/{sum(stage.shares)}</small></span>'
                for rank, share in zip(stage.ranks, stage.shares, strict=True)
            )
            stages.append(
                f'<div class="stage" style="flex:{stage.num_blocks}"><b>blocks {stage.first_block} to '
                f"{stage.stop_block - 1}</b><div>{cells}</div></div>"
            )
        rows.append(
            f'<div class="replica"><i>replica {number}: {replica.num_micro_batches} micro-batches</i>'
            f"{''.join(stages)}</div>"
        )
    standbys = f"<p>Standbys: {', '.join(map(str, layout.standbys))}</p>" if layout.standbys else ""
    return f'<div class="layout">{"".join(rows)}</div>{standbys}'


def _verdicts(seen: Observations) -> str:
    return _table(
        ("at, s", "iteration", "kind", "rank.incarnation", "device", "speed", "95 % margin", "confidence", "evidence"),
        [_verdict_row(seen, verdict) for verdict in seen.log.verdicts],
    )


def _verdict_row(seen: Observations, verdict: VerdictSeen) -> tuple[str, ...]:
    return (
        f"{verdict.decided_at - seen.started_at:.2f}",
        str(verdict.decided_iteration),
        verdict.kind.value.replace("_", " "),
        ", ".join(f"{culprit.rank}.{culprit.incarnation}" for culprit in verdict.culprits),
        ", ".join(f"{culprit.node}/{culprit.device}" for culprit in verdict.culprits),
        f"{verdict.throughput:.3f}",
        f"{verdict.throughput_margin:.3f}",
        f"{verdict.confidence:.4f}",
        "; ".join(verdict.evidence),
    )


def _expectations(expectations: Iterable[Expectation]) -> str:
    rows = "".join(
        f'<tr class="{"held" if entry.held else "broken"}"><td>{"held" if entry.held else "NOT HELD"}</td>'
        f"<td>{escape(entry.name)}</td><td>{escape(entry.detail)}</td></tr>"
        for entry in expectations
    )
    return f'<div class="scroll"><table><tr><th></th><th>expectation</th><th>figures</th></tr>{rows}</table></div>'


def _query(query: QueryResult) -> str:
    return f"<h3>{escape(query.title)}</h3><pre>{escape(query.sql)}</pre>{_table(query.columns, query.rows)}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(f"<tr>{''.join(_cell(cell) for cell in row)}</tr>" for row in rows)
    empty = "" if rows else f'<tr><td colspan="{len(header)}" class="quiet">none</td></tr>'
    return f'<div class="scroll"><table><tr>{head}</tr>{body}{empty}</table></div>'


def _cell(text: str) -> str:
    numeric = text.lstrip("+-").replace(".", "", 1).removesuffix("%").isdigit()
    return f'<td class="number">{escape(text)}</td>' if numeric else f"<td>{escape(text)}</td>"


def _number(value: float | None, spec: str) -> str:
    return "" if value is None else format(value, spec)

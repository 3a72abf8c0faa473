"""The page of `pool plan`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from coldstart_pool.need.counts import counts_in_lead_time
from coldstart_pool.need.families import shared_pools
from coldstart_pool.need.hit_curve import hit_curve, milestones
from coldstart_pool.need.reading import by_wants, trace_of
from coldstart_pool.planning.plan import Plan, PlannedGroup, PlannedOffer
from coldstart_pool.replay.verify import Verdict
from coldstart_pool.report.charts import hits, machines
from coldstart_pool.report.need_page import steps_table
from coldstart_pool.report.page import Page, Section, Table
from coldstart_pool.report.replay_sections import replay_sections
from coldstart_pool.shares import percent

_MOST_POOLS = 6


def plan_page(
    plan: Plan, verdict: Verdict | None = None, *, verified_on: str = "", since_1970: bool = False
) -> Page:
    """Machines, needs, reasons; with a verdict, the replay on `verified_on` too."""
    sections = [*_sections(plan)]
    if verdict is not None:
        sections += _verified(verdict, verified_on, since_1970=since_1970)
    sections.append(_tables(plan))
    good = plan.feasible and (verdict is None or verdict.kept)
    return Page("A plan for the pool", _answer(plan, verdict), good, tuple(_facts(plan)), tuple(sections))


def _answer(plan: Plan, verdict: Verdict | None) -> str:
    gpus = sum(one.instances * one.offer.gpus_per_instance for one in plan.offers)
    machines_planned = sum(one.instances for one in plan.offers)
    said = f"{gpus} GPUs on {machines_planned} machines for {float(plan.cost_per_hour):.2f} USD an hour"
    said += " meet every need." if plan.feasible else "; they do not meet every need."
    if verdict is not None and not verdict.kept:
        said += f" The promise was not kept in the replay: {verdict.remedy}."
    return said


def _facts(plan: Plan) -> Iterator[tuple[str, str]]:
    policy = plan.policy
    yield "cost", f"{float(plan.cost_per_hour):.2f} USD an hour"
    if plan.offers:
        yield (
            ("proof", "no plan for these GPUs costs less")
            if plan.solved.proven
            else ("gap to the least possible", f"{float(plan.gap):.2%}")
        )
    yield "service level", percent(float(policy.service_level))
    if policy.lead_time_seconds is not None:
        yield "lead time", f"{float(policy.lead_time_seconds):g} s"
    if plan.committed_per_hour:
        yield "committed, planned or not", f"{float(plan.committed_per_hour):.2f} USD an hour"
    if plan.solved.scenario_cost:
        yield "reckoned for spot that runs dry", f"{float(plan.solved.scenario_cost):.2f} USD an hour"
    if policy.survive:
        yield f"left when any {policy.domain} is lost", percent(float(policy.survive))
    yield "offers read", f"{len(plan.inputs.offers):,}"


def _sections(plan: Plan) -> Iterator[Section]:
    yield Section(
        "Needs",
        tuple(f"{group.needed.label}: {sentence}" for group in plan.groups for sentence in group.limits),
        (machines.needs(plan.groups),) if plan.groups else (),
        (_needs_table(plan.groups),),
    )
    if plan.offers:
        yield Section("Machines", (), (machines.machines(plan),), (_machines_table(plan.offers),))
    if plan.solved.problem.held:
        yield _changes(plan)
    if plan.remedies:
        yield Section(
            "What would help",
            (
                "No single change of those tried would do; this one comes nearest."
                if plan.remedies[0].missing_gpus
                else "Each is one change that meets every need, found by planning again; the cheapest first.",
            ),
            (),
            (
                Table(
                    ("remedy", "kind", "GPUs still missing", "USD an hour then"),
                    tuple(
                        (one.sentence, one.kind, f"{one.missing_gpus:g}", f"{one.cost_per_hour_usd:.2f}")
                        for one in plan.remedies
                    ),
                    (2, 3),
                ),
            ),
        )
    if plan.shadow_prices:
        drawing = machines.constraints(plan)
        yield Section(
            "Why it costs what it costs",
            (),
            () if drawing is None else (drawing,),
            (
                Table(
                    ("why", "constraint", "USD an hour", "holds for"),
                    tuple(
                        (
                            one.sentence,
                            one.kind,
                            f"{one.usd_per_hour:.2f}",
                            "-" if one.holds_units is None else f"{abs(one.holds_units)} or more",
                        )
                        for one in plan.shadow_prices
                    ),
                    (2, 3),
                ),
            ),
        )
    yield from _next_hit(plan)


def _tables(plan: Plan) -> Section:
    return Section(
        "Tables",
        (),
        (),
        (
            Table(
                ("file", "table", "rows", "rows refused"),
                tuple(
                    (one.path, str(one.table), f"{one.rows:,}", f"{one.refused_rows:,}")
                    for one in plan.inputs.reports
                ),
                (2, 3),
            ),
        ),
    )


def _next_hit(plan: Plan) -> Iterator[Section]:
    """Where demand is a trace: what more hits would cost in each pool, at the mean price of its GPUs."""
    lead, level = plan.policy.lead_time_seconds, plan.policy.service_level
    if plan.inputs.demand.trace is None or lead is None:
        return
    trace = trace_of(plan.inputs.demand, by_wants(plan.inputs.classes))
    for pool, members in enumerate(shared_pools(trace)[:_MOST_POOLS]):
        part = trace.of(members)
        names = [trace.names[number] for number in members]
        price = _mean_price(plan, names)
        if not part.scale_ups or not price:
            continue
        curve = hit_curve(counts_in_lead_time(part, lead), trace.span_seconds)
        size = curve.gpus_for_level(level)
        yield Section(
            f"The price of the next hit: {' + '.join(names)}",
            (
                f"A pool of their own, each GPU at the plan's mean of {price:.2f} USD an hour; "
                f"{percent(float(level))} takes {size} idle GPUs.",
            ),
            (
                hits.hit_rates(str(pool), curve, size, level),
                hits.price_of_next_hit(str(pool), curve.steps(price), size, None),
            ),
            (steps_table(milestones(curve, price)),),
        )


def _mean_price(plan: Plan, names: Sequence[str]) -> float | None:
    """US dollars for a GPU and hour of the planned machines that these classes can use."""
    wants = [group.wants[0] for group in plan.classes if group.wants[0].name in names]
    used = [one for one in plan.offers if any(want.fits(one.offer) for want in wants)]
    gpus = sum(one.instances * one.offer.gpus_per_instance for one in used)
    return float(sum(one.offer.price * one.instances for one in used) / gpus) if gpus else None


def _verified(verdict: Verdict, path: str, *, since_1970: bool) -> Iterator[Section]:
    outcome = verdict.outcome
    promise = percent(float(verdict.service_level))
    margin = f" less a margin of {float(verdict.margin * 100):g} %" if verdict.margin else ""
    yield Section(
        "The replay on unseen demand",
        (
            f"On {path}, {percent(outcome.hit_rate)} of {outcome.scale_ups:,} scale-ups found GPUs at once; "
            f"promised were {promise}{margin}.",
            *(
                f"{one.name}: promise not kept: {percent(one.hit_rate)} of {one.scale_ups:,} scale-ups."
                for one in verdict.broken
            ),
        ),
    )
    yield from replay_sections([outcome], float(verdict.service_level), since_1970=since_1970)


def _changes(plan: Plan) -> Section:
    if not plan.changes:
        return Section("Against the current pool", ("Nothing changes.",))
    return Section(
        "Against the current pool",
        (),
        (),
        (
            Table(
                ("machine", "change", "why"),
                tuple(
                    (
                        f"{one.offer.place} {one.offer.instance_type} {one.offer.market}",
                        f"{one.instances:+d}",
                        one.reason,
                    )
                    for one in plan.changes
                ),
                (1,),
            ),
        ),
    )


def _needs_table(groups: Sequence[PlannedGroup]) -> Table:
    return Table(
        ("classes", "target", "need", "planned", "missing", "without the worst domain"),
        tuple(
            (
                one.needed.label,
                _number(one.needed.gpus),
                _number(one.required_gpus),
                _number(one.planned_gpus),
                _number(one.missing_gpus),
                f"{_number(one.survival[0][1])} ({one.survival[0][0]})" if one.survival else "-",
            )
            for one in groups
        ),
        (1, 2, 3, 4, 5),
    )


def _machines_table(offers: Sequence[PlannedOffer]) -> Table:
    return Table(
        (
            "provider",
            "place",
            "instance",
            "GPU",
            "market",
            "planned",
            "now",
            "obtainable",
            "USD an hour each",
            "USD an hour",
        ),
        tuple(
            (
                one.offer.provider,
                " ".join(part for part in (one.offer.region, one.offer.zone) if part) or "-",
                one.offer.instance_type,
                f"{one.offer.gpus_per_instance} x {one.offer.gpu}",
                one.offer.market,
                str(one.instances),
                str(one.held),
                str(one.obtainable_instances),
                f"{float(one.offer.price):.4f}",
                f"{float(one.offer.price * one.instances):.2f}",
            )
            for one in offers
        ),
        tuple(range(5, 10)),
    )


def _number(value: Fraction | int) -> str:
    return f"{float(value):g}"

"""The plan as plain values, and the plan file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coldstart_cli.errors import UsageError
from coldstart_cli.files import atomic_write
from coldstart_cli.regular import require_output
from coldstart_cli.version import __version__
from coldstart_pool.inputs.findings import TableReport
from coldstart_pool.inputs.offers import Offer
from coldstart_pool.planning.model.system import Number
from coldstart_pool.planning.plan import Plan, PlannedGroup, PlannedOffer
from coldstart_pool.planning.policy import Policy

SCHEMA_VERSION = 1


def plan_document(plan: Plan, *, verification: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The plan as plain values, without schema and version; what does not apply is left out."""
    solved = plan.solved
    return {
        "created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "coldstart_version": __version__,
        "feasible": plan.feasible,
        "cost_per_hour_usd": _money(plan.cost_per_hour),
        "committed_per_hour_usd": _money(plan.committed_per_hour),
        "scenario_cost_per_hour_usd": _money(solved.scenario_cost),
        "movement_cost_usd": _money(plan.extra_per_hour - solved.scenario_cost),
        "lower_bound_per_hour_usd": _money(plan.lower_bound_per_hour),
        "gap": round(float(plan.gap), 6),
        "proven_optimal": solved.proven,
        "offers_read": len(plan.inputs.offers),
        "unobserved_offers": len(plan.assembled.available.unobserved),
        "unmatched_supply_lines": list(plan.unmatched_supply),
        "notes": [*solved.notes, *plan.assembled.unheld],
        "policy": policy_document(plan.policy),
        "scenarios": {
            "blocks": plan.assembled.supply.blocks,
            "used": len(solved.problem.scenarios) if solved.problem.will.floor < 1 else 0,
        },
        "inputs": [_input_document(report) for report in plan.inputs.reports],
        "offers": [_offer_document(entry) for entry in plan.offers if entry.instances],
        "classes": [_class_document(entry) for entry in plan.classes],
        "unions": [_group_document(entry) for entry in plan.unions],
        **({} if verification is None else {"verification": dict(verification)}),
        "changes": [
            {**_machine(change.offer), "instances": change.instances, "reason": change.reason}
            for change in plan.changes
        ],
        "shadow_prices": [
            {name: value for name, value in asdict(price).items() if value is not None}
            for price in plan.shadow_prices
        ],
        "remedies": [asdict(remedy) for remedy in plan.remedies],
    }


def policy_document(policy: Policy) -> dict[str, Any]:
    """What the plan promises and keeps to."""
    optional = {
        "lead_time_seconds": policy.lead_time_seconds,
        "peak_utilisation": policy.peak_utilisation,
        "budget_per_hour_usd": policy.budget,
        "grow_gpus": policy.grow_gpus,
    }
    return {
        "service_level": float(policy.service_level),
        "largest_share": float(policy.largest_share),
        "survive": float(policy.survive),
        "domain": policy.domain,
        "floor": float(policy.floor),
        "missing_price_usd": float(policy.missing_price),
        "churn": float(policy.churn),
        "shrink": float(policy.shrink),
        "good_share": float(policy.good_share),
        "speeds": [
            {"provider": one.provider, "gpu": one.gpu, "share": float(one.share)} for one in policy.speeds
        ],
        **{name: float(value) for name, value in optional.items() if value is not None},
    }


def write_plan(plan: Plan, path: Path, *, verification: Mapping[str, Any] | None = None) -> None:
    """The plan file, TOML or JSON by the ending, replaced whole."""
    import tomli_w  # not needed for help

    document = {
        "schema": "coldstart.plan",
        "version": SCHEMA_VERSION,
        **plan_document(plan, verification=verification),
    }
    if plan_suffix(path) == ".json":
        content = json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    else:
        content = tomli_w.dumps(document)
    atomic_write(path, content.encode())


def plan_suffix(path: Path) -> str:
    """`.toml` or `.json`, in a folder that exists, else refused."""
    if path.suffix not in {".toml", ".json"}:
        raise UsageError(
            f"a plan file ends in `.toml` or `.json`: {path}", hint=f"pass `--output {path.stem}.toml`"
        )
    require_output(path)
    return path.suffix


def _input_document(report: TableReport) -> dict[str, Any]:
    return {
        "table": report.table,
        "path": report.path,
        "digest": report.digest,
        "rows": report.rows,
        "refused_rows": report.refused_rows,
        "decisions": [{"topic": topic, "decision": decision} for topic, decision in report.decisions],
        "findings": [
            {
                "line": finding.line,
                "severity": finding.severity.value,
                "reason": finding.reason,
                "detail": finding.detail,
            }
            for finding in report.findings
        ],
    }


def _offer_document(entry: PlannedOffer) -> dict[str, Any]:
    return {
        **_machine(entry.offer),
        "instances": entry.instances,
        "held_instances": entry.held,
        "committed_instances": entry.committed,
        "price_per_instance_hour_usd": float(entry.offer.price),
        "obtainable_instances": entry.obtainable_instances,
    }


def _machine(offer: Offer) -> dict[str, Any]:
    return {
        "provider": offer.provider,
        "region": offer.region,
        "zone": offer.zone,
        "instance_type": offer.instance_type,
        "gpu": offer.gpu,
        "gpus_per_instance": offer.gpus_per_instance,
        "market": offer.market,
    }


def _class_document(entry: PlannedGroup) -> dict[str, Any]:
    (wants,) = entry.wants
    return {
        "class": wants.name,
        "gpu": wants.gpu,
        "gpus_accepted": list(wants.gpus),
        "gpus_per_replica": wants.gpus_per_replica,
        "providers": list(wants.providers),
        "regions": list(wants.regions),
        **({"snapshot": wants.snapshot} if wants.snapshot else {}),
        **_group_document(entry),
    }


def _group_document(entry: PlannedGroup) -> dict[str, Any]:
    needed = entry.needed
    return {
        "classes": list(needed.classes),
        "target_gpus": float(needed.gpus),
        "required_gpus": _gpus(entry.required_gpus),
        "planned_gpus": _gpus(entry.planned_gpus),
        "missing_gpus": _gpus(entry.missing_gpus),
        "missing_survival_gpus": _gpus(entry.missing_survival_gpus),
        "left_without": [{"domain": name, "gpus": _gpus(left)} for name, left in entry.survival],
        "limits": list(entry.limits),
        **({} if needed.replicas is None else {"scale_ups": needed.replicas}),
        **({} if needed.peak_busy_gpus is None else {"peak_busy_gpus": needed.peak_busy_gpus}),
        **({} if needed.interval is None else {"need_interval_gpus": list(needed.interval)}),
    }


def _gpus(value: Number) -> int | float:
    return int(value) if value == int(value) else float(value)


def _money(value: Number) -> float:
    return round(float(value), 6)

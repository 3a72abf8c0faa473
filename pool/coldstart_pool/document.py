"""The plan as plain values, and the plan file."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coldstart_cli.errors import UsageError
from coldstart_cli.files import atomic_write
from coldstart_cli.regular import require_output
from coldstart_cli.version import __version__
from coldstart_pool.findings import TableReport
from coldstart_pool.plan import Plan, PlannedClass, PlannedOffer

SCHEMA_VERSION = 1


def plan_document(plan: Plan) -> dict[str, Any]:
    """The plan as plain values, without schema and version; lead time is left out when there is none."""
    lead = plan.policy.lead_time_seconds
    policy = {
        "service_level": float(plan.policy.service_level),
        "peak_utilisation": float(plan.policy.peak_utilisation),
        "largest_share": float(plan.policy.largest_share),
        **({} if lead is None else {"lead_time_seconds": float(lead)}),
    }
    return {
        "created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "coldstart_version": __version__,
        "feasible": plan.feasible,
        "cost_per_hour_usd": float(plan.cost_per_hour),
        "lower_bound_per_hour_usd": round(plan.lower_bound_per_hour, 6),
        "gap": round(plan.gap, 6),
        "offers_read": plan.offers_read,
        "unobserved_offers": plan.unobserved_offers,
        "unmatched_supply_lines": list(plan.unmatched_supply),
        "policy": policy,
        "inputs": [_input_document(report) for report in plan.inputs],
        "offers": [_offer_document(entry) for entry in plan.offers],
        "classes": [_class_document(entry) for entry in plan.classes],
    }


def write_plan(plan: Plan, path: Path) -> None:
    """The plan file, TOML or JSON by the ending, replaced whole."""
    import tomli_w  # not needed for help

    document = {"schema": "coldstart.plan", "version": SCHEMA_VERSION, **plan_document(plan)}
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
        "path": report.path,
        "digest": report.digest,
        "rows": report.rows,
        "refused_rows": report.refused_rows,
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
        "provider": entry.offer.provider,
        "region": entry.offer.region,
        "zone": entry.offer.zone,
        "instance_type": entry.offer.instance_type,
        "gpu": entry.offer.gpu,
        "gpus_per_instance": entry.offer.gpus_per_instance,
        "market": entry.offer.market,
        "instances": entry.instances,
        "price_per_instance_hour_usd": float(entry.offer.price),
        "obtainable_instances": entry.obtainable_instances,
    }


def _class_document(entry: PlannedClass) -> dict[str, Any]:
    return {
        "gpu": entry.need.gpu,
        "target_gpus": float(entry.need.target_gpus),
        "required_gpus": entry.need.required_gpus,
        "planned_gpus": entry.planned_gpus,
        "missing_gpus": entry.missing_gpus,
        "limits": list(entry.limits),
        **({} if entry.scale_ups is None else {"scale_ups": entry.scale_ups}),
    }

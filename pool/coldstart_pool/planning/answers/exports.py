"""The plan in forms that fleets use: Kubernetes manifests, EC2 warm pools, CSV."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from coldstart_cli.errors import DataError, UsageError
from coldstart_cli.files import atomic_write
from coldstart_cli.regular import require_output
from coldstart_pool.inputs.offers import ON_DEMAND, SPOT, Offer
from coldstart_pool.planning.plan import Plan, PlannedOffer

# what the autoscaler keeps a machine for at least: SkyServe's delay before it scales down
_SCALE_DOWN_SECONDS = 1200
# the lowest priority for which the cluster autoscaler still buys machines (its default cut-off)
_PRIORITY = -10
_NAME = "coldstart-warm-pool"
# what Kubernetes takes as the value of a label
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_COLUMNS = (
    "provider", "region", "zone", "instance_type", "gpu", "gpus_per_instance", "market", "instances",
    "held_instances", "committed_instances", "obtainable_instances", "price_per_instance_hour_usd",
)  # fmt: skip


def write_export(plan: Plan, form: str, path: Path) -> None:
    """Replace a regular file with the plan in one of `EXPORTS`."""
    atomic_write(path, EXPORTS[form](plan).encode())


def export_form(text: str) -> tuple[str, Path]:
    """`FORM=FILE` as typed, the form known and the file writable."""
    form, equals, path = text.partition("=")
    if form not in EXPORTS or not equals or not path:
        raise UsageError(
            f"--export takes FORM=FILE, with one of {', '.join(EXPORTS)}: {text}",
            hint="for example `--export kubernetes=pool.json`",
        )
    require_output(Path(path))
    return form, Path(path)


def kubernetes(plan: Plan) -> str:
    """A JSON list for `kubectl apply -f`: a floor for each offer, held by pods that yield to any other.

    Raises where the tables say of a machine nothing that a node's labels could say.
    """
    if nameless := [entry.offer for entry in plan.offers if not _has_labels(entry.offer)]:
        names = ", ".join(f"`{one.provider} {one.place} {one.instance_type}`" for one in nameless[:3])
        raise DataError(
            f"Kubernetes cannot choose these machines by the labels of nodes: {names}",
            hint="name types and places in the price table as the nodes' labels do, or export csv",
        )
    items: list[dict[str, Any]] = [
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": _NAME},
            "value": _PRIORITY,
            "globalDefault": False,
            "description": "Holds idle GPU machines; any pod of ordinary priority takes their place at once.",
        }
    ]
    for entry in plan.offers:
        name = _kubernetes_name(entry)
        items.append(_floor(plan, entry, name))
        if entry.instances:  # an autoscaler cannot ask for none
            items.append(_slow_scale_down(plan, entry, name))
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=2) + "\n"


def ec2_warm_pools(plan: Plan) -> str:
    """Arguments of `aws autoscaling put-warm-pool`, one group an offer; a warm pool holds no spot."""
    busy = _busy(plan)
    pools, left_out = [], []
    for entry in plan.offers:
        offer = entry.offer
        place = {"Region": offer.region, "AvailabilityZone": offer.zone, "InstanceType": offer.instance_type}
        reason = _no_warm_pool(offer)
        if reason:
            part = {"provider": offer.provider, **place, "instances": entry.instances, "reason": reason}
            left_out.append(part)
            continue
        where = offer.zone or offer.region
        # the same machine is a group of its own where it is paid for in another way
        market = "" if offer.market == ON_DEMAND else f"-{_slug(offer.market)}"
        group = {
            "AutoScalingGroupName": f"coldstart-{_slug(offer.instance_type)}-{_slug(where)}{market}",
            "MinSize": entry.instances,
            # without it the pool would grow to the whole distance from the group's size to its maximum
            "MaxGroupPreparedCapacity": entry.instances + busy.get(offer.key, 0),
            "PoolState": "Running",
            "InstanceReusePolicy": {"ReuseOnScaleIn": True},
        }
        pools.append({**place, "PutWarmPool": group})
    return json.dumps({"warm_pools": pools, "left_out": left_out}, indent=2) + "\n"


def csv_table(plan: Plan) -> str:
    """One row an offer, with the columns of the plan document; `--current` reads it back."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for entry in plan.offers:
        offer = entry.offer
        machine = (offer.instance_type, offer.gpu, offer.gpus_per_instance, offer.market)
        counts = (entry.instances, entry.held, entry.committed, entry.obtainable_instances)
        place = (offer.provider, offer.region, offer.zone)
        writer.writerow([*place, *machine, *counts, f"{float(offer.price):.6f}"])
    return text.getvalue()


EXPORTS: Mapping[str, Callable[[Plan], str]] = {
    "kubernetes": kubernetes,
    "ec2-warm-pool": ec2_warm_pools,
    "csv": csv_table,
}


def _floor(plan: Plan, entry: PlannedOffer, name: str) -> dict[str, Any]:
    """Pods that do nothing and fill one machine each; how many is the autoscaler's to say."""
    offer = entry.offer
    nodes = {"node.kubernetes.io/instance-type": offer.instance_type}
    if offer.region:
        nodes["topology.kubernetes.io/region"] = offer.region
    if offer.zone:
        nodes["topology.kubernetes.io/zone"] = offer.zone
    gpus = {"nvidia.com/gpu": str(offer.gpus_per_instance)}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(plan, entry, name),
        "spec": {
            **({} if entry.instances else {"replicas": 0}),
            "selector": {"matchLabels": {"app.kubernetes.io/instance": name}},
            "template": {
                "metadata": {"labels": {"app.kubernetes.io/name": _NAME, "app.kubernetes.io/instance": name}},
                "spec": {
                    "priorityClassName": _NAME,
                    "terminationGracePeriodSeconds": 0,
                    "automountServiceAccountToken": False,
                    "nodeSelector": nodes,
                    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
                    "containers": [
                        {
                            "name": "hold",
                            "image": "registry.k8s.io/pause:3.10",
                            "resources": {
                                "requests": {"cpu": "1m", "memory": "8Mi", **gpus},
                                "limits": {"memory": "8Mi", **gpus},
                            },
                        }
                    ],
                },
            },
        },
    }


def _slow_scale_down(plan: Plan, entry: PlannedOffer, name: str) -> dict[str, Any]:
    """Raises the floor at once; lowers it by the plan's share an interval when a smaller plan comes."""
    step = max(1, int(plan.policy.shrink * entry.instances))
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": _metadata(plan, entry, name),
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            "minReplicas": entry.instances,
            # a lower limit than what runs would be enforced at once, whatever the policies below say
            "maxReplicas": max(entry.instances, entry.held, entry.obtainable_instances),
            # idle pods use no CPU, so the metric always asks for the fewest: the floor itself
            "metrics": [
                {
                    "type": "Resource",
                    "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}},
                }
            ],
            "behavior": {
                "scaleUp": {
                    "stabilizationWindowSeconds": 0,
                    "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}],
                },
                "scaleDown": {
                    "stabilizationWindowSeconds": _SCALE_DOWN_SECONDS,
                    "policies": [{"type": "Pods", "value": step, "periodSeconds": _SCALE_DOWN_SECONDS}],
                },
            },
        },
    }


def _metadata(plan: Plan, entry: PlannedOffer, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "labels": {
            "app.kubernetes.io/name": _NAME,
            "app.kubernetes.io/instance": name,
            "coldstart/provider": _slug(entry.offer.provider)[:63].rstrip("-"),
        },
        "annotations": {
            "coldstart/gpu": entry.offer.gpu,
            "coldstart/market": entry.offer.market,
            "coldstart/service-level": f"{float(plan.policy.service_level):g}",
        },
    }


def _busy(plan: Plan) -> dict[tuple[object, ...], int]:
    """Machines that work beside the pool, by offer, from the table of the current pool."""
    from coldstart_pool.inputs.places import matching

    found: dict[tuple[object, ...], int] = {}
    holdings = plan.inputs.holdings
    for holding, members in zip(
        holdings, matching(plan.inputs.offers, [one.selector for one in holdings]), strict=True
    ):
        if members:
            key = plan.inputs.offers[members[0]].key
            found[key] = found.get(key, 0) + holding.busy
    return found


def _kubernetes_name(entry: PlannedOffer) -> str:
    """A DNS label of at most 63 characters that no other offer has."""
    from hashlib import blake2s

    offer = entry.offer
    digest = blake2s(repr(offer.key).encode(), digest_size=4).hexdigest()
    words = _slug("-".join((offer.instance_type, offer.zone or offer.region, offer.market)))
    return f"{_NAME}-{words}"[:54].rstrip("-") + f"-{digest}"


def _no_warm_pool(offer: Offer) -> str:
    """Why EC2 can hold none of it; empty where it can."""
    if offer.market == SPOT:
        return "a warm pool holds no spot machines"
    if offer.provider != "aws":
        return "not sold by AWS"
    return "" if _stated(offer) else "the price table names no instance type"


def _has_labels(offer: Offer) -> bool:
    values = (offer.instance_type, offer.region, offer.zone)
    return _stated(offer) and all(not value or _LABEL.fullmatch(value) for value in values)


def _stated(offer: Offer) -> bool:
    """Whether the tables name the machine; without a name it is called after what is in it."""
    return not offer.instance_type.startswith(f"{offer.gpus_per_instance}x{offer.gpu}")


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")

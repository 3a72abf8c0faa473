"""The fields of every table, and the headings that are known to mean them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from coldstart_pool.inputs import translated_headings as translated
from coldstart_pool.inputs.columns import Synonyms, synonyms
from coldstart_pool.inputs.translated_headings import joined


class TableKind(StrEnum):
    """The tables that a plan can be made of."""

    PRICES = "prices"
    PAID = "paid"
    SUPPLY = "supply"
    DEMAND = "demand"
    CLASSES = "classes"
    CURRENT = "current"
    QUOTA = "quota"
    COMMITMENTS = "commitments"
    DOMAINS = "domains"
    SNAPSHOTS = "snapshots"
    MACHINES = "machines"


PLACE_FIELDS = joined(
    synonyms(
        provider="provider cloud vendor cloudprovider providername serviceprovidername?",
        region="region regionid regioncode location? datacenter? regionname?",
        zone="zone availabilityzone az",
        instance_type="instancetype instancename name? instance? machinetype vmtype sku? shape",
        gpu="gpu gpuname gputype gpumodel accelerator acceleratorname acceleratortype",
        gpu_count="gpucount gpus acceleratorcount numgpus ngpus gpusinstance gpusperinstance",
        market="market purchaseoption? pricingmodel capacitytype termtype",
    ),
    translated.PLACES,
)
_MACHINE_FACTS = synonyms(
    driver="driver driverversion nvidiadriver gpudriver",
    cpu_level="cpulevel level psabi microarchitecture",
)
_APPLICATIONS = "application app appname class demandclass model modelname service deployment workload"
# counts: nobody writes three decimals behind one
WHOLE_NUMBERS = frozenset(
    (
        *("gpu_count", "instances", "busy", "limit", "in_use", "obtainable", "requested", "obtained"),
        *("advertised", "target", "replicas", "gpus_per_replica", "running"),
    )
)
_ENGLISH: Mapping[TableKind, Synonyms] = {
    TableKind.PRICES: {
        **PLACE_FIELDS,
        **_MACHINE_FACTS,
        **synonyms(
            gpu_memory="gpumemory gpuram vram memorypergpu",
            gpu_info="gpuinfo",
            vcpus="vcpus vcpu cpus cpu",
            memory="memory ram",
            price="price cost rate perhour priceper hourlyprice priceperinstance instanceprice priceperunit",
            on_demand="ondemand ondemandprice priceondemand",
            spot="spot spotprice pricespot preemptible preemptibleprice",
            per_gpu="pergpu pricepergpu gpuprice",
            currency="currency billingcurrency",
            unit="unit priceunit pricingunit",
            as_of="asof date time timestamp updated updatedat lastupdated fetchedat effectivedate pricedate",
        ),
    },
    # FOCUS 1.0 to 1.2: what was paid; the headings are the specification's
    TableKind.PAID: {
        **PLACE_FIELDS,
        **synonyms(
            instance_type="instancetype xinstancetype skuinstancetype resourcesize vmsize",
            market="pricingcategory",
            contracted_price="contractedunitprice",
            list_price="listunitprice",
            unit="pricingunit",
            quantity="pricingquantity",
            currency="billingcurrency",
            charge="chargecategory",
            period_start="chargeperiodstart",
            period_end="chargeperiodend",
            reservation="capacityreservationid",
            reservation_status="capacityreservationstatus",
            commitment="commitmentdiscountid",
            commitment_status="commitmentdiscountstatus",
            details="skupricedetails xskudetails",
        ),
    },
    TableKind.SUPPLY: {
        **PLACE_FIELDS,
        **synonyms(
            obtainable="obtainable obtainableinstances available count supply capacity limit",
            requested="requested asked requests",
            obtained="obtained granted fulfilled got launched",
            time="time timestamp at askedat requestedat",
            lead="lead leadseconds leadtime leadtimeseconds seconds took duration durationseconds",
            reason="reason error errorcode message failure status",
            placement_score="sps score placementscore spotplacementscore",
            advertised="t3",
            advertised_two="t2",
            interruption="if interruptionfrequency interruptionband",
        ),
    },
    TableKind.DEMAND: {
        **synonyms(
            gpu=" ".join(sorted(PLACE_FIELDS["gpu"])) + " gpuclass",
            application=_APPLICATIONS,
            target="targetgpus target needed neededgpus required",
            time="time timestamp starttime createdat creationtime gmtcreate started startedat",
            stop="stop stoptime stopped stoppedat deletedat deletiontime end endtime ended endedat",
            replicas="replicas replica starts instances",
            gpus_per_replica="gpusperreplica gpusreplica replicagpus gpurequest",
            running="running runningreplicas replicacount readyreplicas currentreplicas",
            rate="rate requestrate rps qps requestss requestsper requestspersecond requestspersec requests/",
            service_rate="servicerate servicerps requestsperreplica replicarps",
            series="metric series labels",
            value="value",
            event="event action change",
        ),
    },
    TableKind.CLASSES: synonyms(
        application=f"{_APPLICATIONS} name",
        gpu=" ".join(sorted(PLACE_FIELDS["gpu"])),
        accepts="accepts alternatives substitutes alsogpus",
        gpus_per_replica="gpusperreplica gpusreplica replicagpus gpus",
        service_rate="servicerate servicerps requestsperreplica replicarps",
        providers="providers provider",
        regions="regions region",
        snapshot="snapshot snapshotname",
    ),
    TableKind.CURRENT: {
        **PLACE_FIELDS,
        **synonyms(
            instances="instances count machines hosts idle held have number",
            busy="busy busyinstances inuse used allocated",
        ),
    },
    TableKind.QUOTA: {
        **PLACE_FIELDS,
        **synonyms(
            group="group quotagroup quota quotaname",
            limit="limit quotalimit most maximum max value",
            in_use="inuse used usage current",
            unit="unit quotaunit",
        ),
    },
    TableKind.COMMITMENTS: {
        **PLACE_FIELDS,
        **synonyms(
            instances="instances count committed minimum reserved quantity",
            until="until end ends expires expiry enddate",
        ),
    },
    TableKind.DOMAINS: {**PLACE_FIELDS, **synonyms(domain="domain failuredomain label faultdomain")},
    TableKind.SNAPSHOTS: {
        **_MACHINE_FACTS,
        **synonyms(
            snapshot="snapshot snapshotname name application app class",
            gpu=" ".join(sorted(PLACE_FIELDS["gpu"])),
        ),
    },
    TableKind.MACHINES: {**PLACE_FIELDS, **_MACHINE_FACTS},
}
FIELDS: Mapping[TableKind, Synonyms] = {
    **_ENGLISH,
    TableKind.PRICES: joined(_ENGLISH[TableKind.PRICES], translated.PRICES),
    TableKind.SUPPLY: joined(_ENGLISH[TableKind.SUPPLY], translated.SUPPLY),
    TableKind.DEMAND: joined(_ENGLISH[TableKind.DEMAND], translated.DEMAND),
    TableKind.CURRENT: joined(_ENGLISH[TableKind.CURRENT], translated.COUNTS),
    TableKind.QUOTA: joined(_ENGLISH[TableKind.QUOTA], translated.QUOTA),
    TableKind.COMMITMENTS: joined(_ENGLISH[TableKind.COMMITMENTS], translated.COUNTS, translated.COMMITMENTS),
}

"""FOCUS exports: contracted prices, and reservations that nothing used."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

from coldstart_pool.inputs.fields import TableKind
from coldstart_pool.inputs.findings import Severity, TableReport
from coldstart_pool.inputs.loading import read_tables
from coldstart_pool.inputs.paid import Paid, read_paid
from coldstart_pool.inputs.pool_inputs import TableFiles
from coldstart_pool.inputs.rules import ReadingRules

COLUMNS = (
    "ProviderName,RegionId,RegionName,AvailabilityZone,ChargeCategory,ChargePeriodStart,ChargePeriodEnd,"
    "PricingCategory,PricingUnit,PricingQuantity,ContractedUnitPrice,ListUnitPrice,BillingCurrency,"
    "CapacityReservationStatus,CommitmentDiscountStatus,SkuPriceDetails\n"
)


def charge(
    price: str = "40",
    day: int = 2,
    *,
    category: str = "Usage",
    pricing: str = "Standard",
    unit: str = "Hrs",
    quantity: str = "24",
    currency: str = "USD",
    reservation: str = "",
    commitment: str = "",
    kind: str = "p5.48xlarge",
) -> str:
    details = f'"{{""InstanceType"": ""{kind}""}}"' if kind else ""
    return (
        f"Amazon Web Services,us-east-1,US East,,{category},"
        f"2026-05-0{day}T00:00:00Z,2026-05-0{day + 1}T00:00:00Z,"
        f"{pricing},{unit},{quantity},{price},55,{currency},{reservation},{commitment},{details}\n"
    )


def load(tmp_path: Path, *rows: str) -> tuple[Paid, TableReport]:
    path = tmp_path / "focus.csv"
    path.write_text(COLUMNS + "".join(rows))
    return read_paid(path, ReadingRules())


def test_the_contracted_price_of_the_newest_period_counts(tmp_path: Path) -> None:
    paid, report = load(tmp_path, charge("44", 1), charge("40", 2), charge("40", 2))
    assert [
        (price.selector.provider, price.selector.instance_type, price.price) for price in paid.prices
    ] == [("aws", "p5.48xlarge", Fraction(40))]
    assert report.clean
    assert report.used_rows == 3


def test_spot_and_on_demand_are_priced_apart(tmp_path: Path) -> None:
    paid, _ = load(tmp_path, charge("40"), charge("12", pricing="Dynamic"))
    assert {(price.selector.market, int(price.price)) for price in paid.prices} == {
        ("on-demand", 40),
        ("spot", 12),
    }


def test_what_is_no_machine_or_no_usage_is_counted_apart(tmp_path: Path) -> None:
    paid, report = load(tmp_path, charge(kind=""), charge(category="Tax"), charge())
    assert len(paid.prices) == 1
    assert (report.other_rows, report.refused_rows) == (2, 0)


def test_a_price_of_nought_or_in_another_currency_or_unit_replaces_nothing(tmp_path: Path) -> None:
    paid, report = load(tmp_path, charge("0"), charge(currency="EUR"), charge(unit="GB-Mo"), charge("-1"))
    assert paid.prices == ()
    severities = {finding.line: finding.severity for finding in report.findings}
    assert severities == {
        2: Severity.NOTED,
        3: Severity.REFUSED,
        4: Severity.REFUSED,
        5: Severity.INVALID,
    }


def test_two_prices_in_one_period_are_questioned_with_their_lines(tmp_path: Path) -> None:
    paid, report = load(tmp_path, charge("40"), charge("41"))
    assert paid.prices == ()
    assert sorted(finding.line for finding in report.of_severity(Severity.QUESTIONED)) == [2, 3]


def test_unused_reservations_are_commitments_of_whole_machines(tmp_path: Path) -> None:
    paid, _ = load(
        tmp_path,
        charge(quantity="48", reservation="Used"),
        charge(quantity="49", reservation="Unused"),
        charge(quantity="24", commitment="Unused"),
        charge(quantity="999", day=1, reservation="Unused"),
    )
    assert [(entry.instances, entry.lines) for entry in paid.commitments] == [(3, (3, 4))]


def test_offers_get_their_contracted_price_and_commitments_join_the_tables(tmp_path: Path) -> None:
    prices = tmp_path / "prices.csv"
    prices.write_text(
        "provider,region,instance_type,gpu,gpu_count,on_demand\n"
        "aws,us-east-1,p5.48xlarge,H100,8,55\naws,eu-1,p5.48xlarge,H100,8,56\n"
    )
    focus = tmp_path / "focus.csv"
    focus.write_text(COLUMNS + charge("40") + charge(reservation="Unused") + charge("3", kind="m7i.large"))
    files = ((TableKind.PRICES, prices), (TableKind.PAID, focus))
    inputs = read_tables(TableFiles(files, ReadingRules())).inputs
    assert {offer.region: int(offer.price) for offer in inputs.offers} == {"us-east-1": 40, "eu-1": 56}
    assert [entry.instances for entry in inputs.commitments] == [1]
    assert [(finding.line, finding.reason) for finding in inputs.contradictions] == [
        (0, "1 offers have their contracted price instead of the list price"),
        (4, "no price row for machines that were paid for"),
    ]

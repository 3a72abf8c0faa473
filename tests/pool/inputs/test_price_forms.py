"""Price tables in the forms that catalogues, price lists and people give them."""

from __future__ import annotations

from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

import pytest

from coldstart_cli.errors import DataError
from coldstart_pool.inputs.findings import Severity, TableReport
from coldstart_pool.inputs.offers import Offer
from coldstart_pool.inputs.prices import load_offers
from coldstart_pool.inputs.rules import ReadingRules, reading_rules

HEADER = "provider,region,instance_type,gpu,gpu_count,on_demand,spot\n"
NOW = datetime(2026, 6, 1, tzinfo=UTC)


def load(
    tmp_path: Path, text: str, rules: ReadingRules | None = None, name: str = "prices.csv"
) -> tuple[tuple[Offer, ...], TableReport]:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return load_offers(path, rules=rules)


def reasons(report: TableReport, severity: Severity) -> dict[int, str]:
    return {finding.line: finding.reason for finding in report.of_severity(severity)}


def info(mib: int) -> str:
    return f"\"{{'Gpus': [{{'MemoryInfo': {{'SizeInMiB': {mib}}}}}], 'TotalGpuMemoryInMiB': {mib}}}\""


def test_a_catalogue_file_takes_its_provider_from_the_folder_and_says_so(tmp_path: Path) -> None:
    text = "InstanceType,AcceleratorName,AcceleratorCount,Price,SpotPrice,Region\nbig,H100,8,23.6,10,eu-1\n"
    offers, report = load(tmp_path, text, name="catalogs/nebius/vms.csv")
    assert {offer.provider for offer in offers} == {"nebius"}
    assert ("no column", "provider is `nebius` in every row") in report.decisions
    with pytest.raises(DataError, match="no column for `provider`"):
        load(tmp_path, text, name="catalogs/nebius/other.csv")


def test_machines_without_a_gpu_are_counted_and_not_complained_of(tmp_path: Path) -> None:
    rows = "a,eu-1,cpu-only,,,0.20,\na,eu-1,big,H100,8,23.60,\na,eu-1,pod,tpu-v6e-8,1,21.6,\n"
    offers, report = load(tmp_path, HEADER + rows)
    assert len(offers) == 1
    assert (report.rows, report.used_rows, report.other_rows, report.refused_rows) == (3, 1, 2, 0)
    assert report.clean


GOOGLE = (
    "InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,"
    "Region,AvailabilityZone,Price,SpotPrice\n"
)


def test_a_machine_and_its_gpus_in_rows_of_their_own_are_added(tmp_path: Path) -> None:
    rows = (
        "a2-highgpu-2g,24.0,170.0,,,,eu-1,eu-1-a,1.47895,0.7395\n"
        "a2-highgpu-2g,24.0,170.0,,,,eu-1,eu-1-b,1.47895,\n"
        "a2-ultragpu-2g,24.0,340.0,,,,eu-1,eu-1-a,2.2,1.1\n"
        "n1-standard-8,8.0,30.0,,,,eu-1,eu-1-a,0.38,0.08\n"
        ",,,A100,2,{'SizeInMiB': 40960},eu-1,eu-1-a,5.86782,1.76034\n"
        ",,,A100,2,{'SizeInMiB': 40960},eu-1,eu-1-b,5.86782,1.76034\n"
        ",,,V100,2,{'SizeInMiB': 16384},eu-1,eu-1-a,4.96,1.2\n"
    )
    offers, report = load(tmp_path, GOOGLE + rows, name="gcp/vms.csv")
    found = {
        (offer.zone, offer.market): (offer.gpu, offer.gpus_per_instance, float(offer.price))
        for offer in offers
    }
    assert found == {
        ("eu-1-a", "on-demand"): ("A100-40GB", 2, 7.34677),
        ("eu-1-a", "spot"): ("A100-40GB", 2, 2.49984),
        ("eu-1-b", "on-demand"): ("A100-40GB", 2, 7.34677),
    }
    assert reasons(report, Severity.REFUSED) == {
        4: "price of the machine alone, no row prices its GPUs",
        8: "price of the GPU alone, its machine is priced in another row",
    }
    assert (report.rows, report.used_rows, report.other_rows) == (7, 2, 3)


def test_a_column_of_gpu_counts_is_not_taken_for_names(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds numbers and no names") as caught:
        load(tmp_path, "provider,GPU,gpus,price\naws,8,8,55\n")
    assert "--map prices.gpu_count=GPU" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("name", "count", "kind", "mib", "gpu"),
    [
        ("A100", 1, "one", 81920, "A100-80GB"),
        ("A100", 8, "eight", 80, "A100-80GB"),  # gibibytes in the field for mebibytes
        ("A100", 8, "eight", 327680, "A100-40GB"),  # all cards together
        ("H100", 1, "1x-H100_NVL", 95830, "H100-NVL-94GB"),
        ("H100", 2, "two", 191660, "H100-NVL-94GB"),
        ("A100", 1, "1x-A100_PCIE", 81920, "A100-PCIe-80GB"),
        ("H200", 1, "one", 143771, "H200-141GB"),
    ],
)
def test_the_memory_beside_a_name_settles_which_card_it_is(
    tmp_path: Path, name: str, count: int, kind: str, mib: int, gpu: str
) -> None:
    header = HEADER.replace("spot", "GpuInfo")
    offers, report = load(tmp_path, header + f"a,eu-1,{kind},{name},{count},{2 * count},{info(mib)}\n")
    assert [offer.gpu for offer in offers] == [gpu]
    assert report.clean


def test_a_memory_that_fits_no_such_card_is_questioned(tmp_path: Path) -> None:
    text = HEADER.replace("spot", "GpuInfo") + f"a,eu-1,one,RTX4090,1,0.4,{info(49140)}\n"
    offers, report = load(tmp_path, text)
    assert offers == ()
    assert reasons(report, Severity.QUESTIONED) == {2: "the memory does not fit the GPU"}
    assert len(load(tmp_path, text, reading_rules(accept_suspicious=True))[0]) == 1


@pytest.mark.parametrize(
    ("unit", "price", "dollars"),
    [
        ("per hour", "24", 24),
        ("USD/GPU/hr", "3", 24),
        ("Hrs", "24", 24),
        ("per day", "576", 24),
        ("monthly", "17520", 24),
        ("per week", "4032", 24),
        ("1 Hour", "24", 24),
        ("per GPU per month", "2190", 24),
    ],
)
def test_a_unit_is_turned_into_one_hour_of_an_instance(
    tmp_path: Path, unit: str, price: str, dollars: int
) -> None:
    ((offer,), report) = load(tmp_path, f"provider,gpu,gpu_count,price,unit\na,H100,8,{price},{unit}\n")
    assert offer.price == dollars
    assert dict(report.decisions)["unit"] == unit.lower()


def test_a_unit_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    _, report = load(tmp_path, "provider,gpu,gpu_count,price,unit\na,H100,8,24,Quantity\n")
    assert reasons(report, Severity.REFUSED) == {2: "unknown price unit"}


def test_another_currency_needs_a_rate_and_the_rate_is_said(tmp_path: Path) -> None:
    text = "provider,gpu,gpu_count,price,currency\na,H100,1,2.00,EUR\nb,H100,1,€2.00,\nc,H100,1,2.00,\n"
    offers, report = load(tmp_path, text)
    assert [offer.provider for offer in offers] == ["c"]
    assert set(reasons(report, Severity.REFUSED)) == {2, 3}
    offers, report = load(tmp_path, text, reading_rules(rates=["eur=1.08"]))
    assert [float(offer.price) for offer in offers] == [2.16, 2.16, 2.0]
    assert dict(report.decisions)["currency"] == "EUR at 1.08 USD"


def test_currencies_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    text = "provider,gpu,gpu_count,price,currency\na,H100,1,€2.00,USD\nb,H100,1,$2.00,CAD\n"
    _, report = load(tmp_path, text, reading_rules(rates=["EUR=1.08"]))
    found = {
        finding.line: (finding.reason, finding.detail) for finding in report.of_severity(Severity.REFUSED)
    }
    assert found == {
        2: ("currencies contradict each other", "EUR and USD"),
        3: ("price is not in US dollars: pass `--rate CURRENCY=USD`", "CAD"),
    }


def test_old_prices_are_questioned_and_the_newest_of_dated_ones_counts(tmp_path: Path) -> None:
    text = (
        "provider,gpu,gpu_count,price,date\n"
        "a,H100,1,2.00,2026-05-20\na,H100,1,2.50,2026-05-30\nb,H100,1,2.00,2026-04-01\nc,H100,1,2,2027-01-01\n"
    )
    offers, report = load(tmp_path, text, ReadingRules(now=NOW))
    assert [(offer.provider, offer.price) for offer in offers] == [("a", Fraction(5, 2))]
    assert reasons(report, Severity.QUESTIONED) == {
        4: "price is older than 30 days",
        5: "price is dated in the future",
    }
    assert reasons(report, Severity.NOTED) == {2: "a newer row of the same offer counts"}


def test_a_typed_age_limit_holds_for_files_without_dates(tmp_path: Path) -> None:
    text = HEADER + "a,eu-1,big,H100,8,23.60,\n"
    assert len(load(tmp_path, text, ReadingRules(now=datetime(2300, 1, 1, tzinfo=UTC)))[0]) == 1
    rules = ReadingRules(now=datetime(2300, 1, 1, tzinfo=UTC), age_by_file=True)
    offers, report = load(tmp_path, text, rules)
    assert offers == ()
    assert reasons(report, Severity.QUESTIONED) == {2: "price is older than 30 days"}


@pytest.mark.parametrize("spot", ["24", "30", "2.40"])
def test_an_odd_spot_price_in_a_row_of_its_own_is_questioned_too(tmp_path: Path, spot: str) -> None:
    text = "provider,gpu,gpu_count,price,market\na,H100,8,24,on-demand\n" + f"a,H100,8,{spot},spot\n"
    offers, report = load(tmp_path, text)
    assert [offer.market for offer in offers] == ["on-demand"]
    assert set(reasons(report, Severity.QUESTIONED)) == {3}


@pytest.mark.parametrize("name", ["A100 MIG 1g.10gb", "1/2 A100 80GB", "H100*", "H100?", "H100 (80GB) é"])
def test_a_slice_or_a_name_with_strange_signs_is_never_the_whole_card(tmp_path: Path, name: str) -> None:
    offers, report = load(tmp_path, HEADER + f"a,eu-1,big,{name},1,2.00,\n")
    assert offers == ()
    assert set(reasons(report, Severity.REFUSED)) == {2}


def test_signs_and_dots_of_unknown_names_are_kept(tmp_path: Path) -> None:
    rows = "".join(f"a,eu-1,m{n},{name},1,2.00,\n" for n, name in enumerate(("X1.5", "X15", "X15+")))
    offers, report = load(tmp_path, HEADER + rows)
    assert [offer.gpu for offer in offers] == ["X1.5", "X15", "X15+"]
    assert {finding.detail for finding in report.of_severity(Severity.NOTED)} == {"`X1.5`", "`X15`", "`X15+`"}


def test_reserved_and_standby_machines_are_markets_of_their_own(tmp_path: Path) -> None:
    rows = "".join(f"a,H100,1,2,{market}\n" for market in ("Reserved", "standby", "preemptible", "OnDemand"))
    offers, _ = load(tmp_path, "provider,gpu,gpu_count,price,market\n" + rows.replace(",2,pre", ",1,pre"))
    assert {offer.market for offer in offers} == {"reserved", "standby", "spot", "on-demand"}


def test_driver_cpu_level_and_vcpus_come_with_the_offer(tmp_path: Path) -> None:
    text = "provider,gpu,gpu_count,price,vCPUs,driver,cpu_level\na,H100,1,2,26,570.86,x86-64-V4\n"
    ((offer,), _) = load(tmp_path, text)
    assert (offer.vcpus, offer.driver, offer.cpu_level) == (26, "570.86", "x86-64-v4")

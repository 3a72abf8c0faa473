"""The text format of Prometheus: metrics with their samples, labels escaped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coldstart_cli.files import atomic_write
from coldstart_cli.plain import plain
from coldstart_cli.regular import require_output


@dataclass
class Metric:
    """One metric; without samples it is left out. `kind` is gauge, counter or histogram."""

    name: str
    meaning: str
    kind: str = "gauge"
    samples: list[tuple[str, Mapping[str, str], float]] = field(default_factory=list)

    def add(self, value: float | None, **labels: str) -> None:
        """A sample; None: there is none."""
        if value is not None:
            self.samples.append((self.name, labels, float(value)))

    def add_histogram(
        self, bounds: Sequence[float], counts: Sequence[float], total: float, labels: Mapping[str, str]
    ) -> None:
        """`counts` in each bucket, one more than `bounds`; `total` is the sum of what was observed."""
        so_far = 0.0
        for bound, count in zip([*map(str, bounds), "+Inf"], counts, strict=True):
            so_far += count
            self.samples.append((f"{self.name}_bucket", {**labels, "le": bound}, so_far))
        self.samples.append((f"{self.name}_sum", labels, total))
        self.samples.append((f"{self.name}_count", labels, so_far))

    def lines(self) -> Iterator[str]:
        if not self.samples:
            return
        yield f"# HELP {self.name} {self.meaning}"
        yield f"# TYPE {self.name} {self.kind}"
        for name, labels, value in self.samples:
            inside = ",".join(f'{label}="{escaped_label(text)}"' for label, text in labels.items())
            yield f"{name}{{{inside}}} {value:.17g}"


def escaped_label(text: str) -> str:
    """A label's value: names may hold what a terminal obeys, and bytes that are no UTF-8."""
    return plain(text).replace("\\", "\\\\").replace('"', '\\"')


def exposition(metrics: Iterable[Metric]) -> str:
    """The whole text."""
    return "".join(f"{line}\n" for metric in metrics for line in metric.lines())


def write_textfile(path: Path, metrics: Iterable[Metric]) -> None:
    """Replace a node exporter's textfile whole: the exporter never reads half of one."""
    require_output(path)
    atomic_write(path, exposition(metrics).encode())

"""What the baseline says of one run, and what it learns from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from coldstart_cli.config import Config
from coldstart_cli.errors import ColdstartError
from coldstart_health.baseline import Baseline, GpuBaseline, load_baseline, update_baseline
from coldstart_health.drift import drifts, learned
from coldstart_health.evidence import Evidence
from coldstart_health.identity import name_of
from coldstart_health.measures import counters, exercised, measured
from coldstart_health.moment import Moment
from coldstart_health.verdict import HOST, Finding, HealthReport, Verdict
from coldstart_host.gpu import GpuFacts


def drift_findings(
    config: Config, evidence: Evidence, report: HealthReport, *, moment: Moment, record: bool
) -> list[Finding]:
    """GPUs that got worse than they were. A baseline that cannot be used is said, and no verdict."""
    gpus = [gpu for gpu in evidence.reading.gpus if gpu.readable and gpu.hung is None]
    if not gpus:
        return []
    lesson = _Lesson(evidence, report, gpus, moment)
    baseline, problem = Baseline(), None
    try:
        baseline = load_baseline(config.state_folder)
    except ColdstartError as error:
        problem = error
    findings = list(lesson.findings(baseline))
    try:
        if record and (problem is not None or lesson.learn(baseline) != baseline):
            aside = update_baseline(config.state_folder, lesson.learn)
            if aside is not None and problem is not None:
                text = f"{problem.message}; put aside as {aside}, and begun anew"
                findings.append(_note("baseline_damaged", text, None))
        elif problem is not None:
            findings.append(_note("baseline_damaged", problem.message, problem.hint))
    except ColdstartError as error:
        findings.append(_note("baseline_not_recorded", error.message, error.hint))
    return findings


@dataclass(frozen=True)
class _Lesson:
    evidence: Evidence
    report: HealthReport
    gpus: list[GpuFacts]
    moment: Moment

    def findings(self, baseline: Baseline) -> Iterator[Finding]:
        figures, driver = exercised(self.evidence), self.evidence.reading.driver_version
        for gpu in self.gpus:
            before = _of(baseline, gpu)
            after = self._learned(before, gpu, figures.get(gpu.subject, {}))
            # the pace and the last values of this run, against what was usual before it
            judged = replace(after, series=before.series)
            values = {**measured(gpu), **figures.get(gpu.subject, {})}
            yield from drifts(judged, values, moment=self.moment, driver=driver)

    def learn(self, baseline: Baseline) -> Baseline:
        """From GPUs in a fit state only: what a sick one does shall not become usual."""
        figures = exercised(self.evidence)
        verdicts = {gpu.subject: gpu.verdict for gpu in self.report.gpus}
        for gpu in self.gpus:
            if verdicts.get(gpu.subject, Verdict.UNKNOWN).may_serve:
                own = figures.get(gpu.subject, {})
                baseline = baseline.with_gpu(self._learned(_of(baseline, gpu), gpu, own))
        return baseline

    def _learned(self, before: GpuBaseline, gpu: GpuFacts, figures: dict[str, float]) -> GpuBaseline:
        return learned(
            replace(before, name=name_of(gpu)),
            {**measured(gpu), **figures},
            counters(gpu),
            moment=self.moment,
            driver=self.evidence.reading.driver_version,
        )


def _of(baseline: Baseline, gpu: GpuFacts) -> GpuBaseline:
    return baseline.of(gpu.uuid) or GpuBaseline(name_of(gpu))


def _note(reason: str, text: str, hint: str | None) -> Finding:
    return Finding(reason, Verdict.OK, HOST, "baseline", text, hint)

"""Which cause is named for which picture, by the numbers that serving engines show."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coldstart_cli.errors import DataError
from coldstart_pool.advise.diagnosis import Advice, Cause, Wanted, diagnose
from coldstart_pool.advise.window import EngineLoad, Observed


def replica(
    *,
    running: float = 8,
    waiting: float = 0,
    rise: float = 0,
    finished: float = 10,
    queue: float | None = 0.0,
    first: float | None = 0.5,
    kv_cache: float | None = None,
    preemptions: float | None = None,
    busy: float | None = None,
    source: str = "a",
) -> Observed:
    return Observed(
        source,
        10.0,
        running,
        waiting,
        rise,
        finished,
        queue_seconds=queue,
        first_token_seconds=first,
        kv_cache_share=kv_cache,
        preemptions_per_second=preemptions,
        busy_share=busy,
    )


def cause(*observed: Observed, wanted: float = 2.0) -> Cause:
    return diagnose(observed, Wanted(wanted)).cause


def test_answers_in_time_are_no_problem_however_many_run() -> None:
    assert cause(replica(running=200, first=1.9)) is Cause.NONE


def test_replicas_that_idle_are_counted_as_too_many() -> None:
    advice = diagnose([replica(busy=0.2, source=name) for name in "abcd"], Wanted())
    assert (advice.cause, advice.replicas, advice.needed_replicas) == (Cause.NONE, 4, 1)


def test_a_queue_beside_small_batches_is_the_batching() -> None:
    assert cause(replica(running=1, waiting=14, queue=6.0, first=6.4)) is Cause.BATCHING


def test_a_full_kv_cache_is_no_batching_problem() -> None:
    found = replica(running=3, waiting=14, queue=6.0, first=6.4, kv_cache=0.93)
    assert cause(found) is Cause.CAPACITY


def test_a_model_that_leaves_no_memory_for_its_requests_is_too_large() -> None:
    found = replica(running=2, waiting=14, queue=6.0, first=6.4, kv_cache=0.99, preemptions=0.5)
    assert cause(found) is Cause.MODEL


def test_computing_that_is_late_without_a_wait_is_the_model() -> None:
    assert cause(replica(running=1, queue=0.1, first=3.0)) is Cause.MODEL
    assert cause(replica(running=8, waiting=30, queue=9.0, first=12.0)) is Cause.MODEL


def test_full_batches_with_a_queue_ask_for_replicas_by_what_arrives() -> None:
    found = [replica(waiting=40, rise=50, finished=10, queue=4.0, first=4.5, source=name) for name in "ab"]
    advice = diagnose(found, Wanted())
    # 20/s are answered and 10/s pile up; a replica does 10/s, of which 80 % are planned with
    assert (advice.cause, advice.needed_replicas) == (Cause.CAPACITY, 4)


def test_a_queue_that_grows_is_a_problem_before_answers_are_late() -> None:
    assert cause(replica(waiting=20, rise=30, first=0.9, queue=0.4)) is Cause.CAPACITY


def test_a_replica_without_work_beside_a_queue_is_pointed_out() -> None:
    busy = replica(waiting=40, queue=4.0, first=4.5)
    advice: Advice = diagnose([busy, replica(running=0, finished=0.1, source="idle-one")], Wanted())
    assert advice.cause is Cause.ROUTING
    assert "idle-one" in advice.evidence[-1]


def test_no_traffic_at_all_is_no_problem() -> None:
    assert cause(replica(running=0, finished=0, queue=None, first=None)) is Cause.NONE


def test_late_answers_of_requests_that_did_not_wait_are_no_lack_of_replicas() -> None:
    late = Observed(
        "a", 10.0, 3, 0, 0, 10, queue_seconds=0.01, queue_p95_seconds=0.02,
        first_token_seconds=0.9, first_token_p95_seconds=2.6,
    )  # fmt: skip
    assert cause(late) is Cause.MODEL
    # a burst that waits is another matter
    assert cause(replace(late, queue_p95_seconds=1.8)) is Cause.CAPACITY


def test_a_mean_in_time_without_a_known_95th_percentile_is_in_time() -> None:
    advice = diagnose([replica(first=0.1)], Wanted())
    assert advice.cause is Cause.NONE
    assert any("95th percentile is not known" in sentence for sentence in advice.evidence)


@pytest.mark.parametrize(("last_bucket", "found"), [(1.0, Cause.NONE), (2.0, Cause.CAPACITY)])
def test_a_last_bucket_below_what_is_wanted_tells_nothing(last_bucket: float, found: Cause) -> None:
    item = replace(replica(waiting=5, queue=0.3), first_token_p95_beyond_seconds=last_bucket)
    assert cause(item) is found


def test_requests_that_wait_and_never_finish_are_no_question_of_replicas() -> None:
    advice = diagnose([replica(waiting=50, finished=0, queue=None, first=None)], Wanted())
    assert (advice.cause, advice.needed_replicas) == (Cause.STALLED, None)
    assert advice.remedies


def test_a_wait_that_is_too_long_is_late_where_no_first_token_is_shown() -> None:
    assert cause(replica(waiting=40, queue=3.0, first=None)) is Cause.CAPACITY
    assert cause(replica(waiting=40, queue=0.2, first=None)) is Cause.NONE


def test_engines_that_share_an_address_are_judged_one_by_one() -> None:
    """Eight engines with one request each are eight batches of one, and no full one."""
    engines = tuple(EngineLoad(f"a engine {number}", 1, 14) for number in range(8))
    item = replace(replica(running=8, waiting=112, queue=6.0, first=6.4), engines=engines)
    assert cause(item) is Cause.BATCHING
    idle = replace(item, engines=(*engines[:7], EngineLoad("a engine 7", 0, 0)))
    advice = diagnose([idle], Wanted())
    assert (advice.cause, advice.replicas) == (Cause.ROUTING, 8)
    assert "a engine 7" in advice.evidence[-1]
    full = tuple(EngineLoad(f"a engine {number}", 8, 14) for number in range(8))
    advice = diagnose([replace(item, running=64, engines=full)], Wanted())
    assert (advice.cause, advice.needed_replicas) == (Cause.CAPACITY, 10)
    assert advice.remedies == ("10 engines at 80% utilisation",)


def test_replicas_of_different_models_are_refused() -> None:
    found = [replace(replica(source=name), model=name) for name in ("a", "b")]
    with pytest.raises(DataError, match=r"replicas of 2 models cannot be added up: a \(a\), b \(b\)"):
        diagnose(found, Wanted())


@pytest.mark.parametrize(("rise", "needed"), [(0, 2), (200, None)])
def test_tokens_without_requests_tell_the_number_only_where_the_queue_stands(
    rise: float, needed: int | None
) -> None:
    item = replace(replica(waiting=40, rise=rise, queue=4.0, first=4.5), finished_per_second=None,
                   tokens_per_second=900.0)  # fmt: skip
    advice = diagnose([item], Wanted())
    assert (advice.cause, advice.needed_replicas) == (Cause.CAPACITY, needed)
    assert advice.remedies

"""What engines export, read into known quantities, and what happens between two looks."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldstart_cli.errors import ColdstartError, DataError, NotFoundError, UsageError
from coldstart_pool.advise.fetch import scrape_file
from coldstart_pool.advise.scrape import Histogram, Scrape, parse_metrics
from coldstart_pool.advise.window import Quantile, between, quantile

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="m"}} {running}
vllm:num_requests_running{{engine="1",model_name="m"}} {running}
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="m"}} {waiting}
vllm:num_requests_waiting{{engine="1",model_name="m"}} 0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} 0.4
vllm:kv_cache_usage_perc{{engine="1",model_name="m"}} 0.6
# TYPE vllm:request_success_total counter
vllm:request_success_total{{engine="0",finished_reason="stop",model_name="m"}} {finished}
vllm:request_success_total{{engine="0",finished_reason="length",model_name="m"}} 5
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{{engine="0",le="0.5",model_name="m"}} {finished}
vllm:time_to_first_token_seconds_bucket{{engine="0",le="+Inf",model_name="m"}} {finished}
vllm:time_to_first_token_seconds_count{{engine="0",model_name="m"}} {finished}
vllm:time_to_first_token_seconds_sum{{engine="0",model_name="m"}} {seconds}
"""
SGLANG = """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{{model_name="m"}} 3
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{{model_name="m"}} 2
# TYPE sglang:token_usage gauge
sglang:token_usage{{model_name="m"}} 0.28
# TYPE sglang:gen_throughput gauge
sglang:gen_throughput{{model_name="m"}} 86.5
# TYPE sglang:num_requests_total counter
sglang:num_requests_total{{model_name="m"}} {finished}
"""


def vllm(
    moment: float, *, running: int = 4, waiting: int = 3, finished: int = 0, seconds: float = 0.0
) -> Scrape:
    text = VLLM.format(running=running, waiting=waiting, finished=finished, seconds=seconds)
    return parse_metrics(text.encode(), "replica", moment)


def test_engines_of_one_replica_add_up_and_the_fullest_cache_counts() -> None:
    found = vllm(0.0, finished=10)
    assert found.gauges == {"running": 8, "waiting": 3, "kv_cache_share": 0.6}
    assert found.counters == {"finished": 15}


def test_rates_and_means_come_from_what_changed_between_two_looks() -> None:
    observed = between(
        [vllm(100.0, finished=10, seconds=4.0), vllm(110.0, waiting=23, finished=30, seconds=14.0)]
    )
    assert observed.finished_per_second == 2.0
    assert observed.first_token_seconds == 0.5
    assert observed.first_token_p95_seconds == pytest.approx(0.475)  # inside the bucket from 0 to 0.5
    assert observed.arrivals_per_second == 4.0


def test_an_engine_that_exports_a_throughput_gauge_is_read_too() -> None:
    first = parse_metrics(SGLANG.format(finished=5).encode(), "replica", 0.0)
    last = parse_metrics(SGLANG.format(finished=25).encode(), "replica", 10.0)
    observed = between([first, last])
    assert (observed.running, observed.waiting, observed.tokens_per_second) == (3, 2, 86.5)
    assert observed.finished_per_second == 2.0


def test_a_server_that_was_started_anew_in_between_is_refused() -> None:
    with pytest.raises(DataError, match="started anew in between: replica"):
        between([vllm(0.0, finished=10), vllm(10.0, finished=3)])


def test_two_looks_at_one_moment_are_refused() -> None:
    with pytest.raises(UsageError, match="no time passes"):
        between([vllm(1.0), vllm(1.0)])


def test_requests_beyond_the_last_bucket_have_no_known_limit() -> None:
    text = VLLM.format(running=1, waiting=0, finished=10, seconds=9.0).replace(
        'le="0.5",model_name="m"} 10', 'le="0.5",model_name="m"} 2'
    )
    observed = between([vllm(0.0), parse_metrics(text.encode(), "replica", 5.0)])
    assert observed.first_token_p95_seconds is None
    assert observed.first_token_p95_beyond_seconds == 0.5


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "no metrics of a known serving engine"),
        (b"node_load1 0.4\n", "no metrics of a known serving engine"),
        (b"<html>not found</html>", "not Prometheus text"),
        (b"\xff\xfe", "not Prometheus text"),
        (b"vllm:num_requests_running NaN\n", "is not a number from 0 up"),
        (b"vllm:num_requests_running -1\n", "is not a number from 0 up"),
    ],
)
def test_what_is_no_engines_text_is_refused_by_name(content: bytes, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint) as caught:
        parse_metrics(content, "http://replica/metrics", 0.0)
    assert "http://replica/metrics" in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"absent\.prom"):
        scrape_file(tmp_path / "absent.prom")


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_any_bytes_are_metrics_or_a_refusal(content: bytes) -> None:
    try:
        parse_metrics(content, "source", 0.0)
    except ColdstartError as error:
        assert "source" in str(error)  # noqa: PT017


def test_a_quantile_lies_inside_its_bucket_as_prometheus_interpolates_it() -> None:
    # bounds of vLLM: the 95th of 100 is 1.1 s at most, and no reason to call 2 s missed
    found = Histogram(100, 60.0, {1.0: 94, 2.5: 104, float("inf"): 104})
    assert quantile(found, 0.95) == Quantile(pytest.approx(1.15))


def test_a_histogram_without_buckets_has_no_known_quantile() -> None:
    assert quantile(Histogram(100, 10.0), 0.95) is None
    assert quantile(Histogram(100, 10.0, {float("inf"): 100}), 0.95) is None


@pytest.mark.parametrize(
    ("name", "value", "limit"),
    [
        ("vllm:kv_cache_usage_perc", "30", "1"),
        ("sglang:token_usage", "45", "1"),
        ("nv_gpu_utilization", "80", "1"),
        ("DCGM_FI_DEV_GPU_UTIL", "180", "100"),
    ],
)
def test_a_share_above_one_is_refused_by_name(name: str, value: str, limit: str) -> None:
    text = f"vllm:num_requests_running 1\n{name} {value}\n"
    with pytest.raises(DataError, match=f"above {limit}: replica: {name} {value}"):
        parse_metrics(text.encode(), "replica", 0.0)


def test_several_models_are_not_added_up_but_asked_for_one_at_a_time() -> None:
    text = "".join(
        f'vllm:num_requests_{name}{{model_name="{model}"}} {value}\n'
        for model, value in (("a", 3), ("b", 40))
        for name in ("running", "waiting")
    )
    with pytest.raises(DataError, match="metrics of 2 models: replica: a, b") as caught:
        parse_metrics(text.encode(), "replica", 0.0)
    assert "--model a" in str(caught.value.hint)
    assert parse_metrics(text.encode(), "replica", 0.0, "b").gauges == {"running": 40, "waiting": 40}
    with pytest.raises(DataError, match=r"no metrics of model c: replica; models: a, b"):
        parse_metrics(text.encode(), "replica", 0.0, "c")


def test_one_series_twice_is_refused() -> None:
    text = 'vllm:num_requests_running{engine="0"} 1\nvllm:num_requests_running{engine="0"} 1\n'
    with pytest.raises(
        DataError, match=r'one series twice: replica: vllm:num_requests_running\{engine="0"\}'
    ):
        parse_metrics(text.encode(), "replica", 0.0)


def test_ranks_of_one_engine_show_the_same_requests_and_data_parallel_ones_show_others() -> None:
    text = "".join(
        f'sglang:num_{name}_reqs{{dp_rank="{dp}",tp_rank="{tp}"}} {value}\n'
        for name, value in (("running", 5), ("queue", 2))
        for dp in range(2)
        for tp in range(4)
    )
    found = parse_metrics(text.encode(), "replica", 0.0)
    assert found.gauges == {"running": 10, "waiting": 4}
    assert found.engines == {
        "dp_rank 0": {"running": 5, "waiting": 2},
        "dp_rank 1": {"running": 5, "waiting": 2},
    }


def test_the_utilisation_that_sglang_never_sets_is_not_read() -> None:
    """It is 0, or -1 of a prefill server, which would read as idle, or refuse everything else."""
    for value in (0, -1):
        text = SGLANG.format(finished=1) + f'sglang:utilization{{model_name="m"}} {value}\n'
        assert "busy_share" not in parse_metrics(text.encode(), "replica", 0.0).gauges
    text = SGLANG.format(finished=1) + 'sglang:fwd_occupancy{model_name="m"} NaN\n'
    assert "busy_share" not in parse_metrics(text.encode(), "replica", 0.0).gauges


TGI = """\
# TYPE tgi_queue_size gauge
tgi_queue_size 30
# TYPE tgi_batch_current_size gauge
tgi_batch_current_size 4
# TYPE tgi_request_success counter
tgi_request_success {finished}
# TYPE tgi_request_duration histogram
tgi_request_duration_sum {latency}
tgi_request_duration_count {finished}
# TYPE tgi_request_queue_duration histogram
tgi_request_queue_duration_sum {queue}
tgi_request_queue_duration_count {finished}
# TYPE tgi_batch_inference_duration histogram
tgi_batch_inference_duration_sum{{method="prefill"}} {prefill}
tgi_batch_inference_duration_count{{method="prefill"}} {finished}
tgi_batch_inference_duration_sum{{method="decode"}} 99999
tgi_batch_inference_duration_count{{method="decode"}} 99999
"""


def test_the_first_token_of_tgi_comes_after_its_queue_and_its_prefill() -> None:
    looks = [
        parse_metrics(TGI.format(finished=count, latency=100 * count, queue=3 * count, prefill=count / 2)
                      .encode(), "replica", moment)
        for count, moment in ((0, 0.0), (20, 10.0))
    ]  # fmt: skip
    observed = between(looks)
    assert (observed.first_token_seconds, observed.queue_seconds) == (3.5, 3.0)
    assert (observed.computing_seconds, observed.waiting, observed.running) == (0.5, 30, 4)


TRITON = """\
# TYPE nv_inference_request_success counter
nv_inference_request_success{{model="ocr",version="1"}} {finished}
# TYPE nv_inference_request_duration_us counter
nv_inference_request_duration_us{{model="ocr",version="1"}} {duration}
# TYPE nv_inference_queue_duration_us counter
nv_inference_queue_duration_us{{model="ocr",version="1"}} {queue}
# TYPE nv_inference_compute_infer_duration_us counter
nv_inference_compute_infer_duration_us{{model="ocr",version="1"}} {compute}
# TYPE nv_gpu_utilization gauge
nv_gpu_utilization{{gpu_uuid="GPU-1"}} 0.75
"""


def test_triton_counts_times_of_finished_requests() -> None:
    looks = [
        parse_metrics(
            TRITON.format(
                finished=count, duration=1_500_000 * count, queue=1_000_000 * count, compute=400_000 * count
            ).encode(),
            "replica",
            moment,
        )
        for count, moment in ((0, 0.0), (50, 10.0))
    ]
    observed = between(looks)
    assert observed.model == "ocr"
    assert (observed.first_token_seconds, observed.queue_seconds) == (1.5, 1.0)  # it answers whole
    assert (observed.waiting, observed.running) == (5.0, 2.0)  # Little's law: it shows neither
    assert (observed.busy_share, observed.first_token_p95_seconds) == (0.75, None)


def test_an_engine_inside_another_shows_its_requests_once() -> None:
    text = TRITON.format(finished=10, duration=1, queue=1, compute=1) + "".join(
        f'vllm:num_requests_{name}{{model="ocr",version="1"}} 2\n' for name in ("running", "waiting")
    ) + 'vllm:request_success_total{model="ocr",version="1"} 10\n'  # fmt: skip
    found = parse_metrics(text.encode(), "replica", 0.0)
    assert found.counters["finished"] == 10
    assert found.gauges["running"] == 2
    assert not found.answers_whole


@pytest.mark.parametrize("dropped", ["num_requests_waiting", "num_requests_running"])
def test_a_queue_or_a_batch_that_is_not_shown_is_not_empty(dropped: str) -> None:
    def look(moment: float, finished: int) -> Scrape:
        text = VLLM.format(running=4, waiting=3, finished=finished, seconds=1.0)
        kept = [line for line in text.splitlines() if dropped not in line]
        return parse_metrics("\n".join([*kept, ""]).encode(), "replica", moment)

    with pytest.raises(
        DataError, match=f"do not say how many requests are {dropped.rsplit('_', maxsplit=1)[-1]}: replica"
    ):
        between([look(0.0, 1), look(10.0, 2)])


def test_the_whole_answer_of_a_streaming_engine_is_not_taken_for_its_first_token() -> None:
    def look(moment: float, finished: int) -> Scrape:
        text = VLLM.format(running=4, waiting=3, finished=finished, seconds=30.0 * finished)
        return parse_metrics(text.replace("time_to_first_token", "e2e_request_latency").encode(), "r", moment)

    observed = between([look(0.0, 0), look(10.0, 20)])
    assert observed.latency_seconds == 30.0
    assert (observed.first_token_seconds, observed.computing_seconds) == (None, None)


def test_two_files_of_one_instant_need_the_time_between_them() -> None:
    """Copies have the times of the copying: counters over a hundredth of a second make any rate."""
    with pytest.raises(UsageError, match="no time passes"):
        between([vllm(1.0), vllm(1.01, finished=30)])

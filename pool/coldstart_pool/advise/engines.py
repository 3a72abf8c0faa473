"""What serving engines call the quantities that decide: vLLM, SGLang, TGI, Triton, and DCGM beside them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Meaning:
    """What a metric's values are: a quantity of ours, in our unit after `factor`.

    `label` and `value` pick the series that count, where a metric has others, too.
    """

    quantity: str
    factor: float = 1.0
    label: str = ""
    value: str = ""


# An engine that runs inside another (vLLM in Triton) shows the same requests under both names:
# of each quantity, the first of these that has it is read.
ENGINES = ("vllm:", "sglang:", "tgi_", "nv_", "DCGM_")
# engines that answer whole, so that the first result is the last
WHOLE_ANSWERS = frozenset({"nv_"})

GAUGES = {
    "vllm:num_requests_running": Meaning("running"),
    "vllm:num_requests_waiting": Meaning("waiting"),
    "vllm:kv_cache_usage_perc": Meaning("kv_cache_share"),  # a share from 0 to 1, whatever its name
    "vllm:gpu_cache_usage_perc": Meaning("kv_cache_share"),  # until vLLM 0.10
    "sglang:num_running_reqs": Meaning("running"),
    "sglang:num_queue_reqs": Meaning("waiting"),
    "sglang:token_usage": Meaning("kv_cache_share"),
    "sglang:gen_throughput": Meaning("tokens_per_second"),
    # not `sglang:utilization`, which nothing sets: it stays at 0, and at -1 of a prefill server
    "sglang:fwd_occupancy": Meaning("busy_share", 0.01),
    "tgi_batch_current_size": Meaning("running"),
    "tgi_queue_size": Meaning("waiting"),
    "nv_inference_pending_request_count": Meaning("waiting"),
    "nv_gpu_utilization": Meaning("busy_share"),
    "DCGM_FI_DEV_GPU_UTIL": Meaning("busy_share", 0.01),
}
# without the `_total` that some versions append
COUNTERS = {
    "vllm:generation_tokens": Meaning("tokens"),
    "vllm:num_preemptions": Meaning("preemptions"),
    "vllm:request_success": Meaning("finished"),
    "sglang:generation_tokens": Meaning("tokens"),
    "sglang:num_retracted_requests": Meaning("preemptions"),
    "sglang:num_requests": Meaning("finished"),
    "tgi_request_success": Meaning("finished"),
    "tgi_request_generated_tokens_sum": Meaning("tokens"),
    "nv_inference_request_success": Meaning("finished"),
}
HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": Meaning("first_token"),
    "vllm:e2e_request_latency_seconds": Meaning("latency"),
    "vllm:request_queue_time_seconds": Meaning("queue"),
    "vllm:request_inference_time_seconds": Meaning("inference"),
    "sglang:time_to_first_token_seconds": Meaning("first_token"),
    "sglang:e2e_request_latency_seconds": Meaning("latency"),
    "sglang:queue_time_seconds": Meaning("queue"),
    "tgi_request_duration": Meaning("latency"),
    "tgi_request_queue_duration": Meaning("queue"),
    "tgi_request_inference_duration": Meaning("inference"),
    "tgi_batch_inference_duration": Meaning("prefill", 1.0, "method", "prefill"),
    "nv_inference_first_response_histogram_ms": Meaning("first_token", 1e-3),
}
# Triton: counters of the time that all finished requests spent
TIMES = {
    "nv_inference_request_duration_us": Meaning("latency", 1e-6),
    "nv_inference_queue_duration_us": Meaning("queue", 1e-6),
    "nv_inference_compute_input_duration_us": Meaning("inference", 1e-6),
    "nv_inference_compute_infer_duration_us": Meaning("inference", 1e-6),
    "nv_inference_compute_output_duration_us": Meaning("inference", 1e-6),
}
SHARES = frozenset({"kv_cache_share", "busy_share"})
# NaN between two measurements is how it says that it has no value
MAY_BE_NAN = frozenset({"sglang:fwd_occupancy"})

MODEL_LABELS = ("model_name", "model")
# each value is an engine of its own, with its own queue: data-parallel ones, or pods of a federated scrape
ENGINE_LABELS = ("instance", "pod", "engine", "dp_rank")
# what ranks of one engine show is the same thing seen several times
RANK_LABELS = frozenset({"tp_rank", "pp_rank", "moe_ep_rank", "pid"})

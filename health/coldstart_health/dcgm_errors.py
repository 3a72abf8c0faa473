"""DCGM's error ids and return codes, judged by coldstart.

DCGM's own severities moved between releases (61 of 101 ids between 3.2.6 and 3.3.1, row-remap failure again
in 4.6) and were not printed before 3.3, so the id decides, then the severity, then the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from coldstart_health.verdict import Verdict

_FIELD_DIAGNOSTIC = "have NVIDIA's field diagnostic run on it; replace it when that fails"
_RESET = "drain it, then `nvidia-smi --gpu-reset -i {gpu}`"
_REPLACE = "take it out of service and have it replaced"
_COOLING = "check cooling and power of the host, then run the diagnosis again"
_AGAIN = "run the diagnosis again on an idle host"
_LINKS = "see `nvidia-smi nvlink --status -i {gpu}`"
_FABRIC = "systemctl status nvidia-fabricmanager"
_SETUP = "repair the set-up that the evidence names, then run the diagnosis again"

# verdict -> action -> id: reason code. Set-up and business (persistence, ECC mode, a busy GPU) never drain
_JUDGED: tuple[tuple[Verdict, str, dict[int, str]], ...] = (
    (
        Verdict.DEGRADED,
        "systemctl enable --now nvidia-persistenced",
        {29: "persistence_off"},
    ),
    (Verdict.DEGRADED, "nvidia-smi -i {gpu} -e 1, then reboot", {55: "ecc_off"}),
    (
        Verdict.DEGRADED,
        _SETUP,
        {
            25: "graphics_processes",
            28: "bad_cuda_environment",
            45: "pcie_generation",
            46: "pcie_width",
            60: "ecc_unsupported",
            72: "power_limit_low",
            77: "state_restored",
        },
    ),
    (
        Verdict.DEGRADED,
        _COOLING,
        {
            5: "ecc_corrected_rate",
            10: "clocks_thermal",
            12: "clocks_power",
            34: "field_threshold",
            40: "thermal_violation",
            41: "thermal_violation",
            42: "temperature_violation",
            43: "clocks_held_down",
            131: "contained_error",
        },
    ),
    (
        Verdict.UNKNOWN,
        _AGAIN,
        {
            47: "diagnosis_aborted",
            51: "cuda_api",
            56: "gpu_busy",
            73: "host_memory_short",
            97: "diagnosis_not_resumed",
            130: "retest_requested",
        },
    ),
    (
        Verdict.UNKNOWN,
        _SETUP,
        {
            0: "dcgm_error",
            1: "dcgm_error",
            2: "dcgm_error",
            11: "power_unreadable",
            18: "file_not_accessible",
            20: "device_count_mismatch",
            21: "dcgm_bad_parameter",
            22: "library_not_loadable",
            23: "denylisted_driver",
            27: "dcgm_field_query",
            32: "dcgm_field_query",
            37: "dcgm_field_type",
            44: "dcgm_internal",
            48: "test_disabled",
            49: "dcgm_field_query",
            64: "api_failed",
            65: "api_failed",
            67: "dcgm_api",
            68: "test_needs_more_gpus",
            78: "test_unsupported",
            82: "gpu_list_empty",
            89: "eud_permissions",
            90: "eud_not_root",
            91: "eud_not_started",
            92: "eud_timeout",
            93: "eud_zombie",
            94: "eud_status",
            96: "file_create_permissions",
            117: "test_skipped",
            124: "binary_permissions",
        },
    ),
    (
        Verdict.DRAIN,
        _FIELD_DIAGNOSTIC,
        {
            3: "pcie_replay_rate",
            9: "inforom_corrupt",
            30: "bandwidth_low",
            31: "latency_high",
            33: "field_violation",
            35: "field_violation",
            36: "field_threshold",
            38: "field_threshold",
            39: "field_threshold",
            50: "stress_level_low",
            52: "faulty_memory",
            54: "cuda_unbound",
            58: "memory_mismatch",
            59: "cuda_device_missing",
            62: "memory_bandwidth_low",
            63: "target_power_missed",
            66: "cuda_context",
            79: "l1_cache_mismatch",
            86: "p2p_broken",
            87: "p2p_broken",
            95: "eud_failed",
            98: "pcie_replay_rate",
            101: "xid",
            102: "ecc_corrected",
            104: "pcie_replay_rate",
            105: "ecc_corrected",
            107: "pcie_replay_rate",
            110: "gflops_low",
            111: "nan_computed",
            113: "p2p_broken",
            114: "p2p_broken",
            129: "nccl_error",
        },
    ),
    (
        Verdict.DRAIN,
        _LINKS,
        {
            13: "nvlink_errors",
            14: "nvlink_down",
            70: "nvlink_errors",
            71: "nvlink_errors",
            99: "nvlink_down",
            115: "p2p_broken",
            116: "p2p_broken",
            119: "nvlink_errors",
            121: "nvlink_errors",
            127: "recovery_drain_p2p",
        },
    ),
    (
        Verdict.DRAIN,
        _FABRIC,
        {
            15: "nvswitch_error",
            100: "nvlink_down",
            108: "fabric_not_started",
            109: "sxid",
            112: "fabric_failed",
            122: "imex_unhealthy",
        },
    ),
    (Verdict.DEGRADED, _FABRIC, {16: "nvswitch_warning", 123: "fabric_probe_state"}),
    (
        Verdict.RESET,
        _RESET,
        {
            4: "ecc_uncorrectable",
            6: "page_retirement_pending",
            57: "ecc_uncorrectable",
            81: "uncontained_error",
            83: "page_retirement_pending",
            84: "row_remap_uncorrectable",
            85: "row_remap_pending",
            103: "ecc_uncorrectable",
            106: "ecc_uncorrectable",
            125: "recovery_reset",
            128: "recovery_drain_and_reset",
        },
    ),
    (
        Verdict.REBOOT,
        "drain and reboot the host; replace the GPU if it happens again",
        {120: "gpu_lost", 126: "recovery_reboot"},
    ),
    (
        Verdict.REPLACE,
        _REPLACE,
        # 80: NVIDIA's memory error guide sends these to RMA, although DCGM 4.6 calls it a reset
        {
            7: "retired_pages_limit",
            8: "retired_pages_limit",
            80: "row_remap_failure",
            118: "sram_threshold",
            132: "row_remap_limit",
        },
    ),
)
_BY_SEVERITY = {
    1: Verdict.DEGRADED,  # monitor
    2: Verdict.DRAIN,  # isolate
    3: Verdict.UNKNOWN,  # unknown
    4: Verdict.DRAIN,  # triage
    5: Verdict.DEGRADED,  # configuration
    6: Verdict.RESET,  # reset
}
# readings of the moment: one that does not come again when the test is repeated is no fault
RETESTED = frozenset(
    {
        "clocks_thermal",
        "clocks_power",
        "clocks_held_down",
        "thermal_violation",
        "temperature_violation",
        "field_threshold",
        "field_violation",
        "retest_requested",
    }
)
_BY_TEXT: tuple[tuple[str, int], ...] = (
    (r"persistence mode .*disabled", 29),
    (r"faulty memory elements", 52),
    (r"PCI link width", 46),
    (r"PCI link generation", 45),
    (r"graphics contexts open", 25),
    (r"row ?remap.*fail|remap(ping)? failure", 80),
    (r"pending row ?remap", 85),
    (r"pending retired page|pending page retirement", 6),
    (r"minimum required bandwidth", 30),
    (r"fallen off the bus", 120),
    (r"corrupt inforom|inforom.*corrupt", 9),
    (r"ECC .*(disabled|not enabled)", 55),
    (r"double.bit", 4),
)
_MIG_TEXT = re.compile(r"MIG (mode enabled|configuration is incompatible)", re.IGNORECASE)


@dataclass(frozen=True)
class Judgement:
    """What an error or return code means here; `{gpu}` in the action stands for the GPU's UUID."""

    reason: str
    verdict: Verdict
    action: str


_BY_ID: dict[int, Judgement] = {
    error_id: Judgement(reason, verdict, action)
    for verdict, action, reasons in _JUDGED
    for error_id, reason in reasons.items()
}


def judge_error(error_id: int | None, severity: int | None, text: str) -> Judgement:
    """By id, else by DCGM's severity, else by the text; a failure that nothing explains drains."""
    if _MIG_TEXT.search(text):
        return Judgement(
            "mig_enabled", Verdict.UNKNOWN, "nvidia-smi -i {gpu} -mig 0, then run the diagnosis again"
        )
    if error_id in _BY_ID:
        return _BY_ID[error_id]
    if severity in _BY_SEVERITY:
        return Judgement(f"dcgm_error_{error_id}", _BY_SEVERITY[severity], _FIELD_DIAGNOSTIC)
    for pattern, known_id in _BY_TEXT:
        if re.search(pattern, text, re.IGNORECASE):
            return _BY_ID[known_id]
    if error_id is not None:
        return Judgement(f"dcgm_error_{error_id}", Verdict.UNKNOWN, _FIELD_DIAGNOSTIC)
    return Judgement("dcgm_test_failed", Verdict.DRAIN, _FIELD_DIAGNOSTIC)


@dataclass(frozen=True)
class ReturnCode:
    """A DCGM return code; `dcgmi` ends with 256 + the code, which is never passed on as our own status."""

    reason: str
    verdict: Verdict
    meaning: str
    action: str


_ENGINE = "systemctl restart nvidia-dcgm"
_INSTALL = "install NVIDIA DCGM with its CUDA package, for instance `datacenter-gpu-manager-4-cuda12`"
_UNKNOWN = Verdict.UNKNOWN

RETURN_CODES: dict[int, ReturnCode] = {
    -1: ReturnCode("dcgm_usage", _UNKNOWN, "bad parameter", _SETUP),
    -2: ReturnCode("dcgm_usage", _UNKNOWN, "command line not understood, or an exception", _SETUP),
    -3: ReturnCode("dcgm_error", _UNKNOWN, "generic error", _AGAIN),
    -6: ReturnCode("dcgm_not_supported", _UNKNOWN, "not supported", _SETUP),
    -11: ReturnCode("dcgm_engine_timeout", _UNKNOWN, "the host engine did not answer", _ENGINE),
    -12: ReturnCode(
        "dcgm_version_mismatch",
        _UNKNOWN,
        "dcgmi and the host engine are of different versions",
        "compare the builds that `dcgmi -v` prints",
    ),
    -14: ReturnCode("dcgm_no_data", _UNKNOWN, "no data", _AGAIN),
    -18: ReturnCode("gpu_lost", Verdict.REBOOT, "a GPU is lost", "drain and reboot the host"),
    -19: ReturnCode(
        "reset_required", Verdict.RESET, "a GPU needs a reset", "drain it, then `nvidia-smi --gpu-reset`"
    ),
    -21: ReturnCode("dcgm_engine_down", _UNKNOWN, "no connection to the host engine", _ENGINE),
    -23: ReturnCode(
        "mixed_models", _UNKNOWN, "GPUs of different models in one group", "run one diagnosis per model"
    ),
    -25: ReturnCode("dcgm_incomplete", _UNKNOWN, "a library of DCGM is missing", _INSTALL),
    -29: ReturnCode("dcgm_needs_root", _UNKNOWN, "needs root", "run as root"),
    -34: ReturnCode("dcgm_busy", _UNKNOWN, "resource in use", _AGAIN),
    -39: ReturnCode("dcgm_busy", _UNKNOWN, "another diagnosis is running", "wait for it to end"),
    -40: ReturnCode("dcgm_output_unreadable", _UNKNOWN, "the diagnosis returned bad JSON", _AGAIN),
    -41: ReturnCode("dcgm_incomplete", _UNKNOWN, "the diagnosis could not be started", _INSTALL),
    -52: ReturnCode("dcgm_incomplete", _UNKNOWN, "the diagnosis program (nvvs) is not installed", _INSTALL),
    -53: ReturnCode("diagnosis_aborted", _UNKNOWN, "the diagnosis was killed", _AGAIN),
    -54: ReturnCode("dcgm_paused", _UNKNOWN, "DCGM is paused", _ENGINE),
    -56: ReturnCode("driver_not_loaded", _UNKNOWN, "DCGM could not load NVML", "modprobe nvidia"),
    -57: ReturnCode("probe_hang", _UNKNOWN, "the driver did not answer", "see `dmesg` for NVRM lines"),
    -58: ReturnCode("nothing_ran", _UNKNOWN, "there is no such test", _SETUP),
    -66: ReturnCode("diagnosis_aborted", _UNKNOWN, "the diagnosis was stopped", _AGAIN),
    -67: ReturnCode("gpus_detached", Verdict.DRAIN, "GPUs are detached from DCGM", _ENGINE),
}
TOOL_MISSING = frozenset({-25, -41, -52})
BUSY = frozenset({-34, -39})
TEST_FAILED = frozenset({226, 205})  # NVVS_ERROR and NVVS_ISOLATE_ERROR: the document says which test

"""XIDs 144 to 150 (NVLink 5) decoded: unit, sub-code and status decide, never the number alone."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from coldstart_health.verdict import Verdict


class Resolution(StrEnum):
    """In the order of their weight."""

    IGNORE = "ignore"
    BY_154 = "154"  # XID 154 tells what to do
    IGNORE_UNLESS_FATAL = "unless-fatal"
    LINK_LOST = "link"  # nothing at once, but a link is down
    RESET = "reset"


_I, _L, _E, _R = Resolution.IGNORE, Resolution.LINK_LOST, Resolution.BY_154, Resolution.RESET
_U = Resolution.IGNORE_UNLESS_FATAL


@dataclass(frozen=True)
class _Unit:
    """`layouts`: the low bits of the first word that name the unit, in each of the two driver layouts."""

    xid: int
    names: tuple[str, ...]
    layouts: tuple[str, str]
    rules: dict[int, Resolution]
    sub_codes: dict[int, Resolution] | None = None


_SOFTWARE = 0x80000000
_TLW = {0x1: _I, 0x2: _I, 0x4: _R, _SOFTWARE: _I}
_UNITS = (
    _Unit(
        144,
        ("SAW_MVB",),
        ("0000100001", "0000001"),
        {0x1: _I, 0x2: _R, 0x4: _I, 0x8: _I, 0x10: _R, 0x20: _I},
    ),
    _Unit(145, ("RLW_CTRL",), ("0001100010", "0000011"), {_SOFTWARE: _I}),
    _Unit(
        145,
        ("RLW_REMAP",),
        ("0010000010", "0000100"),
        dict.fromkeys((0x1, 0x2, 0x4, 0x8, 0x10, 0x20), _E)
        | {0x40: _R, 0x80: _R, 0x100: _I, 0x200: _I, _SOFTWARE: _I},
    ),
    _Unit(145, ("RLW_RSPCOL",), ("0010100010", "0000101"), {0x1: _I, 0x2: _R, _SOFTWARE: _I}),
    _Unit(145, ("RLW_RXPIPE",), ("00011000010", "00000110"), {0x1: _U, 0x2: _U, 0x4: _U}),
    _Unit(145, ("RLW_RXPIPE",), ("0011000010", "0000110"), {0x8: _I, _SOFTWARE: _I}),
    _Unit(
        145,
        ("RLW_SRC_TRACK",),
        ("0011100010", "0000111"),
        {0x1: _R, 0x2: _I, 0x4: _E, 0x8: _E, 0x10: _R, 0x20: _R, _SOFTWARE: _I},
    ),
    _Unit(
        145,
        ("RLW_TAGSTATE",),
        ("0100000010", "0001000"),
        {0x1: _I, 0x2: _R, 0x10000: _I, 0x20000: _R, 0x100000: _R, _SOFTWARE: _I},
    ),
    _Unit(146, ("TLW_CTRL",), ("0100100011", "0001001"), _TLW),
    _Unit(146, ("TLW_RX", "TLW_RX_PIPE0"), ("0101000011", "0001010"), _TLW),
    _Unit(146, ("TLW_RX", "TLW_RX_PIPE1"), ("0101000011", "0001011"), _TLW),
    _Unit(146, ("TLW_TX", "TLW_TX_PIPE0"), ("0101100011", "0001100"), _TLW),
    _Unit(146, ("TLW_TX", "TLW_TX_PIPE1"), ("0101100011", "0001101"), _TLW),
    _Unit(147, ("TREX",), ("0110000100", "0001110"), {0x1: _I, _SOFTWARE: _I}),
    _Unit(148, ("NVLPW_CTRL", "NVLPW"), ("0000000101", "0001111"), {_SOFTWARE: _I}),
    _Unit(149, ("NETIR", "NETIR_INT"), ("0000000110", "0011000"), {0x0: _R}),
    _Unit(149, ("NETIR_BER_EVENT",), ("1000100110", "0010011"), dict.fromkeys(range(4), _I)),
    _Unit(
        149,
        ("NETIR_LINK_EVT", "NETIR_LINK_DOWN"),
        ("0111000110", "0010001"),
        {},
        sub_codes=dict.fromkeys((0x00, 0x01, 0x02, 0x04, 0x0A, 0x0F, 0x10, 0x11, 0x12, 0x15, 0x16), _R)
        | dict.fromkeys((0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x2A, 0x2B), _R)
        | {0x26: _L, 0x28: _L},
    ),
    _Unit(149, ("NETIR_MFDE_EVENT",), ("1001000110", "0010100"), {1: _R, 3: _I, 4: _R, 5: _R, 7: _R}),
    _Unit(150, ("MSE_WATCHDOG",), ("0000000000", "0000000"), {0x0: _R}),
)


def resolution(xid: int, unit: str, info: int, status: int) -> Resolution | None:
    """What the rules say of one error, None where they do not have it; the worst of its status bits wins."""
    sub_code = info >> 20 & 0x3F
    found: list[Resolution] = []
    for entry in _UNITS:
        if entry.xid != xid or not _names(entry, unit, info):
            continue
        if entry.sub_codes is not None:
            if status == 0 and sub_code in entry.sub_codes:
                found.append(entry.sub_codes[sub_code])
        elif sub_code == 0:
            found += _by_status(entry.rules, status)
    return max(found, key=_ORDER.index, default=None)


def link_verdict(xid: int, detail: str) -> tuple[Verdict, str]:
    """Verdict and words of an NVLink 5 error as `kernel_events` kept it: `UNIT severity INFO STATUS`."""
    unit, severity, info, status = (detail.split() + ["", "unknown", "0", "0"][len(detail.split()) :])[:4]
    fatal = severity == "fatal"
    rule = resolution(xid, unit, int(info, 16), int(status, 16)) if detail else None
    words = f"{unit or 'unknown unit'}, {severity}, sub-code {int(info, 16) >> 20 & 0x3F}"
    if rule is None:
        if severity == "nonfatal":
            return Verdict.OK, f"{words}, no rule"
        return (Verdict.RESET if fatal else Verdict.UNKNOWN), f"{words}, no rule"
    if rule is Resolution.RESET or (rule is Resolution.IGNORE_UNLESS_FATAL and fatal):
        return Verdict.RESET, words
    if rule is Resolution.LINK_LOST:
        return Verdict.DEGRADED, f"{words}, a link is down"
    return Verdict.OK, words


_ORDER = list(Resolution)


def _names(entry: _Unit, unit: str, info: int) -> bool:
    """By the unit's name where it is one of ours; the low bits alone are alike in the two layouts."""
    layouts = any(info & (1 << len(bits)) - 1 == int(bits, 2) for bits in entry.layouts)
    known = {name for other in _UNITS for name in other.names}
    return layouts and (unit in entry.names or unit not in known)


def _by_status(rules: dict[int, Resolution], status: int) -> list[Resolution]:
    if status in rules:
        return [rules[status]]
    return [rule for bit, rule in rules.items() if bit > 0 and bit & bit - 1 == 0 and status & bit]

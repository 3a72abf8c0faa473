"""Which xattrs of a layer a file gets: those that Linux would take, and none that belong to overlayfs."""

from __future__ import annotations

import stat
from collections import Counter

from coldstart_fs.format.entry import Xattrs

_NAMESPACES = (b"user.", b"trusted.", b"security.")
_ACCESS_ACL, _DEFAULT_ACL = b"system.posix_acl_access", b"system.posix_acl_default"
_OVERLAY = b"trusted.overlay."
_LONGEST_NAME_BYTES = 255
_LARGEST_VALUE_BYTES = 65536
_ACL_VERSION = b"\x02\0\0\0"
_ACL_ENTRY_BYTES = 8


def carried(xattrs: Xattrs, mode: int, left_out: Counter[str]) -> Xattrs:
    """What the file keeps; the rest is counted. `ValueError` says what no file can have."""
    kept = []
    for name, value in xattrs:
        if not 1 <= len(name) <= _LONGEST_NAME_BYTES or b"\0" in name:
            raise ValueError(f"has an xattr with a name of {len(name)} bytes")
        if len(value) > _LARGEST_VALUE_BYTES:
            raise ValueError(f"has an xattr of {len(value)} bytes")
        if reason := _why_not(name, mode):
            left_out[reason] += 1
            continue
        if name in {_ACCESS_ACL, _DEFAULT_ACL} and not _is_acl(value):
            raise ValueError("has an access control list that cannot be read")
        kept.append((name, value))
    return tuple(kept)


def _why_not(name: bytes, mode: int) -> str | None:
    if name.startswith(_OVERLAY):
        return "xattrs of overlayfs (trusted.overlay.*)"
    if name in {_ACCESS_ACL, _DEFAULT_ACL}:
        if stat.S_ISLNK(mode) or (name == _DEFAULT_ACL and not stat.S_ISDIR(mode)):
            return "access control lists of files that cannot have them"
        return None
    if not name.startswith(_NAMESPACES) or name in _NAMESPACES:
        return "xattrs in no namespace that Linux has"
    if name.startswith(b"user.") and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        return "user xattrs of symlinks, devices and FIFOs"
    return None


def _is_acl(value: bytes) -> bool:
    return value.startswith(_ACL_VERSION) and (len(value) - len(_ACL_VERSION)) % _ACL_ENTRY_BYTES == 0

"""The kernel's FUSE protocol, ABI 7 of `linux/fuse.h`: what a read-only image needs of it."""

from __future__ import annotations

from enum import IntEnum, IntFlag
from struct import Struct

MAJOR = 7
# what this module knows; the kernel speaks the lower of both
MINOR = 41
# zero-message opendir with cached folders, 5.1; everything else that matters is asked for by flag
OLDEST_MINOR = 29
# smallest buffer that the kernel takes, beside one request with a write of the smallest `max_write`
REQUEST_BUFFER_BYTES = 64 << 10
SMALLEST_WRITE_BYTES = 4096
PAGE_BYTES = 4096
RESENT = 1 << 63


class Opcode(IntEnum):
    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    READLINK = 5
    OPEN = 14
    READ = 15
    STATFS = 17
    RELEASE = 18
    GETXATTR = 22
    LISTXATTR = 23
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    INTERRUPT = 36
    DESTROY = 38
    IOCTL = 39
    BATCH_FORGET = 42
    READDIRPLUS = 44
    LSEEK = 46
    STATX = 52


class Notify(IntEnum):
    INVAL_INODE = 2
    INVAL_ENTRY = 3
    STORE = 4
    RESEND = 7


class Init(IntFlag):
    """Flags of INIT; those from bit 32 on travel in `flags2`."""

    ASYNC_READ = 1 << 0
    DO_READDIRPLUS = 1 << 13
    READDIRPLUS_AUTO = 1 << 14
    ASYNC_DIO = 1 << 15
    NO_OPEN_SUPPORT = 1 << 17
    PARALLEL_DIROPS = 1 << 18
    POSIX_ACL = 1 << 20
    ABORT_ERROR = 1 << 21
    MAX_PAGES = 1 << 22
    CACHE_SYMLINKS = 1 << 23
    NO_OPENDIR_SUPPORT = 1 << 24
    EXPLICIT_INVAL_DATA = 1 << 25
    INIT_EXT = 1 << 30
    HAS_RESEND = 1 << 39
    ALLOW_IDMAP = 1 << 40


# what follows FUSE's names: `_IN` comes from the kernel, `_OUT` goes to it
IN_HEADER = Struct("<IIQQIIIHH")  # length, opcode, unique, node, uid, gid, pid, extensions, padding
OUT_HEADER = Struct("<IiQ")  # length, -errno or a notification's code, unique
INIT_IN = Struct("<IIIII44x")  # major, minor, max_readahead, flags, flags2
INIT_IN_SHORT = Struct("<IIII")  # before INIT_EXT
# major, minor, max_readahead, flags, max_background, congestion_threshold, max_write, time_gran, max_pages,
# map_alignment, flags2
INIT_OUT = Struct("<IIIIHHIIHHI28x")
# ino, size, blocks; atime, mtime, ctime in seconds, then their nanoseconds; mode, nlink, uid, gid, rdev,
# blksize, flags
ATTR = Struct("<QQQqqqIIIIIIIIII")
ENTRY_OUT_HEAD = Struct(
    "<QQQQII"
)  # nodeid, generation, entry_valid, attr_valid, their nanoseconds; ATTR follows
ATTR_OUT_HEAD = Struct("<QII")  # attr_valid, nanoseconds, padding; ATTR follows
OPEN_OUT = Struct("<QII")  # fh, open_flags, padding
READ_IN = Struct("<QQIIQII")  # fh, offset, size, read_flags, lock_owner, flags, padding
GETXATTR_IN = Struct("<II")  # size, padding
GETXATTR_OUT = Struct("<II")  # size, padding
LSEEK_IN = Struct("<QQII")  # fh, offset, whence, padding
LSEEK_OUT = Struct("<Q")
INTERRUPT_IN = Struct("<Q")
DIRENT = Struct("<QQII")  # ino, offset of the next entry, length of the name, type (mode >> 12)
# blocks, bfree, bavail, files, ffree, bsize, namelen, frsize
STATFS_OUT = Struct("<QQQQQIII28x")
STORE_OUT = Struct("<QQII")  # nodeid, offset, size, padding
INVAL_INODE_OUT = Struct("<Qqq")  # nodeid, offset, length
INVAL_ENTRY_OUT = Struct("<QII")  # parent, length of the name, flags

FOPEN_KEEP_CACHE = 1 << 1
FOPEN_CACHE_DIR = 1 << 3

"""All cases, in the groups in which they are unpacked and told of."""

from __future__ import annotations

from fs.conformance import archives, links, metadata, whiteouts
from fs.conformance.case import Case

GROUPS: dict[str, list[Case]] = {
    "replacements": whiteouts.REPLACEMENTS,
    "whiteouts": whiteouts.WHITEOUTS,
    "hard links": links.HARD_LINKS,
    "parents": links.PARENTS,
    "names": links.NAMES,
    "modes and owners": metadata.MODES,
    "times": metadata.TIMES,
    "xattrs": metadata.XATTRS,
    "extended headers": archives.EXTENDED,
    "numbers": archives.NUMBERS,
    "sparse files": archives.SPARSE,
    "ends of archives": archives.ENDS,
}

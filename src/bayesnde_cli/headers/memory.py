"""How much memory there is."""

import contextlib
import os
import resource
from pathlib import Path

# Where a container says how much it may take.
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def memory_bytes() -> int:
    """The memory that this process may take: the machine's, the container's, or the user's limit."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        limits.append(soft)
    with contextlib.suppress(OSError, ValueError):  # no container, or one without a limit ("max")
        limits.append(int(_CGROUP_LIMIT.read_text()))
    return min(limits)

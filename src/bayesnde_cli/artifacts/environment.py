"""What a stage ran on: versions, platform, time. Records for a manifest, without importing anything heavy."""

import functools
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime

RECORDED_PACKAGES = ("bayesnde", "numpy", "scipy", "scikit-learn", "pyarrow", "tensorflow", "keras")
# Those of them that compute draws and log-densities: with another version the last digits may be others.
COMPUTING_PACKAGES = ("bayesnde", "numpy", "scipy", "tensorflow")


@functools.cache
def package_versions() -> dict[str, str]:
    """The installed version of each package that can change a number; one that is not installed is left out."""
    from importlib import metadata  # 15 ms that `status` does not need

    versions = {}
    for name in RECORDED_PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def computing_versions() -> dict[str, str]:
    """The installed version of each package that decides the bits of a block."""
    return {name: version for name, version in package_versions().items() if name in COMPUTING_PACKAGES}


def versions_text(versions: Mapping[str, str]) -> str:
    """Versions in one line: `numpy 2.4.6, tensorflow 2.21.0`."""
    return ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))


def python_version() -> str:
    """The version of the running Python: `3.11.7`."""
    return sys.version.split()[0]


def platform_name() -> str:
    """The operating system and processor: `Linux-6.1-x86_64`."""
    system = os.uname()
    return f"{system.sysname}-{system.release}-{system.machine}"


def utc_now() -> str:
    """The time as manifests write it: `2025-01-31T12:00:00+00:00`."""
    return datetime.now(UTC).isoformat(timespec="seconds")

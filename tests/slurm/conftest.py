"""A SLURM to test with: the one of `cluster.sh`. Never another one, which may be somebody's cluster."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from slurm_cluster import Cluster


def _reason() -> str | None:
    """Why there is no SLURM to test with; None if there is one."""
    config = Path(os.environ.get("SLURM_CONF", ""))
    if not config.is_file() or "ClusterName=bayesnde-tests\n" not in config.read_text():
        return "SLURM_CONF is not that of tests/slurm/cluster.sh"
    if shutil.which("sinfo") is None or subprocess.run(["sinfo"], capture_output=True).returncode != 0:
        return "the SLURM of tests/slurm/cluster.sh does not answer"
    return None


REASON = _reason()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if REASON is not None and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=REASON))


@pytest.fixture
def cluster(run: Path, bayesnde: Callable, engines: list, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    from bayesnde_cli import cluster

    monkeypatch.chdir(run.parent)  # where setups start
    monkeypatch.setattr(cluster, "PATIENCE_SECONDS", 20.0)  # this machine may be busy
    made = Cluster(run, bayesnde)
    yield made
    made.cancel()

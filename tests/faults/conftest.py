"""One warm parent and one theatre for all tests of a process."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from scenes import Theatre
from victims import WarmParent


@pytest.fixture(scope="session")
def theatre(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theatre]:
    with WarmParent() as parent:
        yield Theatre(tmp_path_factory.mktemp("theatre"), parent)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A place for a run directory; not there yet."""
    return tmp_path / "scene"

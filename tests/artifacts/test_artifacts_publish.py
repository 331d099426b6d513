"""Finished files go to their places together: a kill between renames never leaves an old manifest over new files."""

import os
import signal
from pathlib import Path

import pytest

from bayesnde_cli.artifacts import claims
from bayesnde_cli.artifacts.publish import publish
from bayesnde_cli.errors import StageBusy

NAMES = ("a.parquet", "inner/b.parquet", "manifest.json")


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """A staging folder with new files and a stage's folder with old ones."""
    for folder, content in ((tmp_path / "staging", "new"), (tmp_path / "stage", "old")):
        (folder / "inner").mkdir(parents=True)
        for name in NAMES:
            (folder / name).write_text(content)
    return tmp_path / "staging", tmp_path / "stage"


def _published(folders: tuple[Path, Path], *, killed_before_rename: int | None) -> int:
    """Publish in a process of its own, which dies by SIGKILL before the given rename; its wait status."""
    staging, stage = folders
    child = os.fork()
    if child == 0:  # pragma: no cover
        replace, done = os.replace, 0

        def counted(source: Path, target: Path) -> None:
            nonlocal done
            if done == killed_before_rename:
                os.kill(os.getpid(), signal.SIGKILL)
            done += 1
            replace(source, target)

        claim = claims.claim(stage / ".claim")
        os.replace = counted  # type: ignore[assignment]
        try:
            assert claim is not None
            publish(staging, stage, NAMES[:-1], NAMES[-1], claim)
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1]


@pytest.mark.parametrize("n_done", [0, 1, 2])
def test_a_kill_between_two_renames_leaves_no_manifest(folders: tuple[Path, Path], n_done: int) -> None:
    assert os.WTERMSIG(_published(folders, killed_before_rename=n_done)) == signal.SIGKILL
    stage = folders[1]
    assert [(stage / name).read_text() for name in NAMES[:n_done]] == ["new"] * n_done  # it was under way
    assert not (stage / "manifest.json").exists()


def test_without_a_kill_all_is_new(folders: tuple[Path, Path]) -> None:
    assert _published(folders, killed_before_rename=None) == 0
    assert [(folders[1] / name).read_text() for name in NAMES] == ["new"] * 3


def test_a_claim_that_was_lost_publishes_nothing(folders: tuple[Path, Path]) -> None:
    staging, stage = folders
    claim = claims.claim(stage / ".claim")
    assert claim is not None
    (stage / ".claim").unlink()
    with pytest.raises(StageBusy, match="taken over"):
        publish(staging, stage, NAMES[:-1], NAMES[-1], claim)
    assert [(stage / name).read_text() for name in NAMES] == ["old"] * 3

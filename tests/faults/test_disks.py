"""Disks that are full, read-only or somebody else's: one message, exit code 2, and the same bytes once that is over."""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from mounts import filled_up, read_only, small_disk
from scenes import SCENES, Theatre, differing, files_of
from victims import STAND_INS

MEGABYTE = 2**20
_FULL = "No space left on device"
_MORE_SPACE = "free some space and run the same command again; finished work is kept"
_OTHER_PLACE = "choose a place that you may write to"
_REFUSED = r"error: cannot write (?P<path>run\S*)\n  {}\nhint: {}\n\Z"
NOBODY = 65534


def _refused(err: str, found: str, hint: str) -> bool:
    return re.search(_REFUSED.format(re.escape(found), re.escape(hint)), err) is not None


@pytest.mark.parametrize("name", ["prepare", "warmstart", "refine", "posterior", "density", "evaluate", "fit"])
def test_a_disk_that_is_full_in_mid_write_is_told_and_then_the_work_goes_on(
    name: str, theatre: Theatre, folder: Path
) -> None:
    scene = SCENES[name]
    expected, command = theatre.calm_files(scene), theatre.command(scene)
    theatre.set_stage(scene, folder)
    n_refused = 0
    with small_disk(folder / "run", 4 * MEGABYTE):
        for n_pages in (0, 2, 5, 9, 20):  # a page is the least that a file takes
            with filled_up(folder / "run", 4096 * n_pages):
                ended = theatre.parent.run(folder, command)
            if ended.code == 0:
                break
            assert ended.code == 2, ended.err
            assert _refused(ended.err, _FULL, _MORE_SPACE), ended.err
            n_refused += 1
        assert n_refused >= 1
        assert theatre.parent.run(folder, command).code == 0
        assert differing(files_of(folder / "run"), expected) == []


@pytest.mark.parametrize("name", ["prepare", "warmstart", "posterior", "density", "evaluate"])
def test_a_stage_on_a_read_only_disk_is_refused_and_leaves_nothing(name: str, theatre: Theatre, folder: Path) -> None:
    scene = SCENES[name]
    theatre.set_stage(scene, folder)
    with small_disk(folder / "run", 4 * MEGABYTE):
        before = files_of(folder / "run")
        with read_only(folder / "run"):
            ended = theatre.parent.run(folder, theatre.command(scene))
        assert ended.code == 2, ended.err
        assert _refused(ended.err, "Read-only file system", _OTHER_PLACE), ended.err
        assert files_of(folder / "run") == before


def test_what_is_done_can_be_used_on_a_read_only_disk(theatre: Theatre, folder: Path) -> None:
    """Runs are archived, and shared with people who may only read them."""
    scene = SCENES["fit"]
    theatre.calm_end(scene)
    folder.mkdir()
    shutil.copytree(theatre.folder / "calm fit" / "run", folder / "run")
    with small_disk(folder / "run", 4 * MEGABYTE), read_only(folder / "run"):
        for command in (theatre.command(scene), ["status"], ["outliers", "--top", "2"], ["density", "--out", "-",
                        "--block-rows", "4", "--draws", "4", "--chains", "2"]):  # fmt: skip
            ended = theatre.parent.run(folder, command)
            assert ended.code == 0, (command, ended.err)
        assert "prepare" in ended.out or "log_density" in ended.out


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that everybody can enter."""
    with tempfile.TemporaryDirectory(prefix="bayesnde-faults-") as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("name", ["prepare", "density"])
def test_a_run_directory_of_somebody_else_is_refused(name: str, theatre: Theatre, public: Path) -> None:
    scene = SCENES[name]
    folder = public / "scene"
    theatre.set_stage(scene, folder)
    folder.chmod(0o777)  # for what the process says
    (folder / "run").mkdir(exist_ok=True)
    shutil.copy(theatre.folder / "data.csv", public / "data.csv")
    shutil.copy(theatre.folder / "new.csv", public / "new.csv")
    command = [word.replace(str(theatre.folder), str(public)) for word in theatre.command(scene)]
    before = files_of(folder / "run")
    ended = theatre.parent.run(folder, command, stand_ins=STAND_INS | {"user": {"uid": NOBODY}})
    assert ended.code == 2, ended.err
    assert _refused(ended.err, "Permission denied", _OTHER_PLACE), ended.err
    assert files_of(folder / "run") == before
    assert theatre.parent.run(folder, command).code == 0  # as root, whom nobody refuses

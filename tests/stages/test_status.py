"""`status`: each state of a stage, the next command, the exit code, and the progress of a stage at work."""

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bayesnde_cli.runs.blocks import Plan, create_or_join, freeze, parse_shard, publish_block
from bayesnde_cli.runs.files import holding, json_bytes, running
from bayesnde_cli.runs.layout import RunLayout
from bayesnde_cli.runs.manifest import Manifest
from bayesnde_cli.stages import status
from bayesnde_cli.stages.status import block_progress, seconds_each
from fake_engine import SMALL, pretend_warmed


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a prepared run and its data. Not to be written to."""
    from bayesnde_cli.cli.main import run

    folder = tmp_path_factory.mktemp("prepared")
    (folder / "data.csv").write_text("x,y\n" + "".join(f"{i / 7},{i * i % 11 / 3}\n" for i in range(80)))
    assert run(["prepare", str(folder / "data.csv"), "--scale", "standard", "--run", str(folder / "r"), "-q"]) == 0
    return folder


@pytest.fixture
def run(prepared: Path, tmp_path: Path) -> Path:
    """A prepared run, to work on."""
    return Path(shutil.copytree(prepared / "r", tmp_path / "r"))


def _states(bayesnde: Callable, run: Path) -> tuple[int, dict[str, dict], str | None]:
    outcome = bayesnde("status", "--run", run, "--json")
    document = json.loads(outcome.out)
    stages = {"/".join(filter(None, (item["stage"], item["set_name"]))): item for item in document["stages"]}
    return outcome.code, stages, document["next"]


def _start(layout: RunLayout, n_rows: int = 100) -> Plan:
    plan = Plan(stage="density", set_name="test", run_id="id", n_rows=n_rows, block_rows=10, seed=0)
    return create_or_join(layout, plan)


def test_no_run_is_three_and_names_the_first_command(bayesnde: Callable, tmp_path: Path) -> None:
    outcome = bayesnde("status", "--run", tmp_path / "none")
    assert (outcome.code, outcome.err) == (3, "")
    assert outcome.out.splitlines()[-1] == f"next: bayesnde prepare DATA --run {tmp_path}/none"


def test_a_prepared_run_is_sound_and_one_without_a_manifest_or_an_output_is_not(bayesnde: Callable, run: Path) -> None:
    code, stages, next_command = _states(bayesnde, run)
    assert (code, next_command) == (0, f"bayesnde warmstart --run {run}")
    assert (stages["prepare"]["state"], stages["refine"]["state"]) == ("done", "missing")
    text = bayesnde("status", "--run", run).out
    assert text.splitlines()[0] == f"run directory: {run}"
    assert "prepare         done" in text
    (run / "prepare/schema.json").unlink()
    code, stages, next_command = _states(bayesnde, run)
    assert (code, stages["prepare"]["state"]) == (3, "damaged")
    assert "schema.json" in stages["prepare"]["detail"]
    assert next_command == f"bayesnde prepare DATA --run {run} --restart"
    (run / "prepare/manifest.json").unlink()
    code, stages, next_command = _states(bayesnde, run)
    assert (code, stages["prepare"]["state"]) == (3, "interrupted")
    assert next_command == f"bayesnde prepare DATA --run {run}"


def test_a_living_claim_is_running_and_a_dead_one_is_not(bayesnde: Callable, run: Path) -> None:
    layout = RunLayout(run)
    (run / "prepare/manifest.json").unlink()
    with running(layout, "prepare"):
        code, stages, next_command = _states(bayesnde, run)
        assert (code, stages["prepare"]["state"], next_command) == (0, "running", "wait for prepare")
    program = (
        "import os, sys; from pathlib import Path; from bayesnde_cli.runs.files import claim; "
        "claim(Path(sys.argv[1])); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", program, str(layout.claim_file("prepare"))], check=True)
    assert layout.claim_file("prepare").exists()
    assert _states(bayesnde, run)[1]["prepare"]["state"] == "interrupted"


def test_a_stage_made_from_files_that_changed_is_stale(bayesnde: Callable, run: Path) -> None:
    layout = RunLayout(run)
    upstream = Manifest.read(layout.manifest_file("prepare"))
    train, folder = upstream.outputs["train.parquet"], run / "warmstart"
    folder.mkdir()
    warm = upstream.model_copy(
        update={"stage": "warmstart", "inputs": {"prepare/train.parquet": train}, "outputs": {}, "identity": {}}
    )
    warm.write(layout.manifest_file("warmstart"))
    assert _states(bayesnde, run)[1]["warmstart"]["state"] == "done"
    other = upstream.outputs | {"train.parquet": {**train, "sha256": "0" * 64}}
    upstream.model_copy(update={"outputs": other}).write(layout.manifest_file("prepare"))
    code, stages, _ = _states(bayesnde, run)
    assert (code, stages["warmstart"]["state"]) == (3, "stale")
    assert "prepare/train.parquet" in stages["warmstart"]["detail"]


def test_changed_data_make_the_run_stale_and_unreadable_data_do_not(bayesnde: Callable, run: Path) -> None:
    path, data = run / "prepare/manifest.json", run.parent / "data.csv"
    document = json.loads(path.read_bytes())
    (entry,) = document["inputs"].values()
    data.write_bytes(Path(entry["path"]).read_bytes().replace(b"\n0.0,", b"\n0.1,"))
    entry["path"] = str(data)
    path.write_bytes(json_bytes(document))
    code, stages, _ = _states(bayesnde, run)
    assert (code, stages["prepare"]["state"]) == (3, "stale")
    assert stages["prepare"]["detail"] == f"{data} has changed"
    data.unlink()  # gone is not changed
    assert _states(bayesnde, run)[0] == 0
    entry["path"] = "/" + "x" * 5000  # the system refuses a name of this length
    path.write_bytes(json_bytes(document))
    assert _states(bayesnde, run)[0] == 0


def test_a_flipped_byte_is_seen_when_verifying(bayesnde: Callable, run: Path) -> None:
    file = run / "prepare/train.parquet"
    content = bytearray(file.read_bytes())
    content[1000] ^= 1
    file.write_bytes(content)
    assert bayesnde("status", "--run", run).code == 0
    outcome = bayesnde("status", "--run", run, "--verify")
    assert outcome.code == 3
    assert "same size, other content" in outcome.out


def test_a_closed_pipe_ends_status_quietly(run: Path) -> None:
    command = [sys.executable, "-m", "bayesnde_cli", "status", "--run", str(run)]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


# Blocks and shards


def test_a_run_goes_from_blocks_to_its_next_stage_and_rows_of_a_file_do_not_stand_for_the_test_rows(
    bayesnde: Callable, fitted: Path, engines: list, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(fitted, tmp_path / "fitted"))
    pretend_warmed(run)
    (tmp_path / "new.csv").write_text("a,b,n,k\n0.1,1.0,3,u\n")
    assert bayesnde("density", tmp_path / "new.csv", "--run", run, *SMALL).code == 0
    _, stages, next_command = _states(bayesnde, run)
    assert [item["state"] for name, item in stages.items() if name.startswith("density/new-")] == ["done"]
    assert (stages["density/test"]["state"], next_command) == ("missing", f"bayesnde density --run {run}")
    assert bayesnde("density", "--run", run, *SMALL, "--shard", "2/4").code == 0
    item = _states(bayesnde, run)[1]["density/test"]
    assert (item["state"], item["blocks_done"], item["blocks"]) == ("interrupted", 2, 8)
    assert bayesnde("density", "--run", run, *SMALL).code == 0
    _, stages, next_command = _states(bayesnde, run)
    assert (stages["density/test"]["state"], stages["posterior/test"]["state"]) == ("done", "missing")
    assert next_command == f"bayesnde evaluate --run {run}"


def test_blocks_shards_rows_and_the_time_left_are_counted(bayesnde: Callable, run: Path) -> None:
    layout = RunLayout(run)
    plan = _start(layout)
    for block in (0, 5, 1):
        publish_block(layout, plan, block, pa.table({"row_id": [block]}))
        os.utime(layout.block_file("density", "test", block), (0, 1_000_000 + 20 * min(block, 2)))
    with holding(layout.claim_file("density", "test", 3)):
        (line,) = [
            line for line in bayesnde("status", "--run", run).out.splitlines() if line.startswith("density/test")
        ]
        assert line.split(maxsplit=2)[1:] == [
            "running",
            "3 of 10          1 process, 30 of 100 rows, about 2 min 20 s left",
        ]
        item = _states(bayesnde, run)[1]["density/test"]
        assert (item["rows_done"], item["rows"], item["seconds_left"]) == (30, 100, 140.0)
    environ = {f"SLURM_ARRAY_TASK_{name}": n for name, n in (("ID", "1"), ("COUNT", "5"), ("MIN", "1"), ("MAX", "5"))}
    freeze(layout, "density", "test", parse_shard("auto", environ))
    item = _states(bayesnde, run)[1]["density/test"]
    assert (item["state"], item["blocks_done"], item["blocks"]) == ("interrupted", 3, 10)
    assert (item["shards_done"], item["shards"], item["seconds_left"]) == (1, 5, None)


@pytest.mark.parametrize(
    ("times", "each"),
    [
        ([], None),
        ([5.0], None),
        ([0.0, 9.0, 20.0, 30.0], 10.0),
        ([0.0, 10.0, 20.0, 80_000.0, 80_010.0], 10.0),  # a night between two evenings
        ([0.0, 0.0, 0.0, 30.0, 30.0, 30.0, 60.0, 60.0, 60.0], 7.5),  # three processes that keep step
    ],
)
def test_the_time_from_block_to_block(times: list[float], each: float | None) -> None:
    assert seconds_each(times) == each


def test_a_sample_of_the_files_gives_the_pace_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = RunLayout(tmp_path)
    _start(layout, n_rows=1_000_000)
    order = random.Random(1).sample(range(80_000), 80_000)  # blocks in no order, one every 3 seconds
    finished = {layout.block_file("density", "test", block): 3.0 * turn for turn, block in enumerate(order)}
    stat, looks = os.stat, []

    def timed(path: Path, *args: Any, **options: Any) -> os.stat_result:
        looks.append(path)
        return os.stat_result((*[0] * 8, finished[path], 0)) if path in finished else stat(path, *args, **options)

    monkeypatch.setattr("os.stat", timed)
    names = [path.name for path in finished]
    progress = block_progress(layout, "density", "test", names, is_running=True)
    assert progress is not None
    assert progress.seconds_left == pytest.approx(20_000 * 3.0, rel=0.25)  # 200 random gaps: 7 % standard error
    assert len(looks) < 2_100


def test_a_folder_of_many_blocks_is_listed_once_and_no_block_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = RunLayout(tmp_path)
    _start(layout, n_rows=1_000_000)
    folder = layout.stage_dir("density", "test")
    names = ["plan.json", *(layout.block_file("density", "test", block).name for block in range(99_000))]
    listed: list[Path] = []
    read: list[str] = []
    read_bytes = Path.read_bytes

    def list_names(path: Path) -> list[str]:
        listed.append(path)
        return names

    def read_and_count(path: Path) -> bytes:
        read.append(path.name)
        return read_bytes(path)

    monkeypatch.setattr("os.listdir", list_names)
    monkeypatch.setattr(Path, "read_bytes", read_and_count)
    (item,) = [item for item in status.run_status(layout).stages if item.stage == "density"]
    assert item.progress is not None
    assert (item.state, item.progress.blocks_done, item.progress.rows_done) == ("interrupted", 99_000, 990_000)
    assert listed.count(folder) == 1
    assert set(read) <= {"plan.json", ".running"}

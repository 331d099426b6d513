"""`bayesnde status`: each state of a stage, the next command, the exit code."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from bayesnde_cli.artifacts import claims, manifest, plan, shards
from bayesnde_cli.artifacts.blocks import publish_block
from bayesnde_cli.artifacts.layout import RunLayout
from bayesnde_cli.artifacts.sealed import sealed_bytes
from fake_engine import SMALL, pretend_warmed


@pytest.fixture
def run(bayesnde: Callable, examples: Path, tmp_path: Path) -> Path:
    """A run that is prepared."""
    assert bayesnde("prepare", examples / "faithful.csv", "--run", tmp_path / "r").code == 0
    return tmp_path / "r"


def _states(bayesnde: Callable, run: Path) -> tuple[int, dict[str, dict], str | None]:
    outcome = bayesnde("status", "--run", run, "--json")
    document = json.loads(outcome.out)
    stages = {item["stage"] if item["set_name"] is None else f"{item['stage']}/{item['set_name']}": item
              for item in document["stages"]}  # fmt: skip
    return outcome.code, stages, document["next"]


def test_no_run_is_three_and_names_the_first_command(bayesnde: Callable, tmp_path: Path) -> None:
    outcome = bayesnde("status", "--run", tmp_path / "none")
    assert outcome.code == 3
    assert outcome.out.splitlines()[-1] == f"next: bayesnde prepare DATA --run {tmp_path}/none"
    assert outcome.err == ""


def test_a_prepared_run_is_sound(bayesnde: Callable, run: Path) -> None:
    code, stages, next_command = _states(bayesnde, run)
    assert code == 0
    assert next_command == f"bayesnde warmstart --run {run}"
    assert stages["prepare"]["state"] == "done"
    assert stages["refine"]["state"] == "missing"
    text = bayesnde("status", "--run", run).out
    assert text.splitlines()[0] == f"run directory: {run}"
    assert "prepare         done" in text


def test_a_damaged_output_is_three_and_the_repair_is_next(bayesnde: Callable, run: Path) -> None:
    (run / "prepare/schema.json").unlink()
    code, stages, next_command = _states(bayesnde, run)
    assert code == 3
    assert stages["prepare"]["state"] == "damaged"
    assert "schema.json" in stages["prepare"]["detail"]
    assert next_command == f"bayesnde prepare DATA --run {run} --restart"


def test_a_stage_without_manifest_was_interrupted(bayesnde: Callable, run: Path) -> None:
    (run / "prepare/manifest.json").unlink()
    code, stages, next_command = _states(bayesnde, run)
    assert code == 3
    assert stages["prepare"]["state"] == "interrupted"
    assert next_command == f"bayesnde prepare DATA --run {run}"


def test_a_living_claim_is_running_and_a_dead_one_is_not(bayesnde: Callable, run: Path) -> None:
    layout = RunLayout(run)
    (run / "prepare/manifest.json").unlink()
    with claims.running(layout, "prepare"):
        code, stages, next_command = _states(bayesnde, run)
        assert (code, stages["prepare"]["state"], next_command) == (0, "running", "wait for prepare")
    code = (
        "import os, sys; from pathlib import Path; from bayesnde_cli.artifacts.claims import claim; "
        "claim(Path(sys.argv[1])); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code, str(layout.claim_file("prepare"))], check=True)
    assert layout.claim_file("prepare").exists()
    assert _states(bayesnde, run)[1]["prepare"]["state"] == "interrupted"


def test_a_stage_made_from_files_that_changed_is_stale(bayesnde: Callable, run: Path, examples: Path) -> None:
    layout = RunLayout(run)
    upstream = manifest.read(layout.manifest_file("prepare"))
    (run / "warmstart").mkdir()
    manifest.write(
        layout.manifest_file("warmstart"),
        manifest.Manifest(
            stage="warmstart", set_name=None, run_id=upstream.run_id, identity={}, config={}, seed=0,
            inputs={"prepare/train.parquet": upstream.outputs["train.parquet"]}, outputs={}, device="cpu", started="",
        ),
    )  # fmt: skip
    assert _states(bayesnde, run)[1]["warmstart"]["state"] == "done"
    bayesnde("prepare", examples / "faithful.csv", "--seed", "5", "--run", run, "--restart")
    code, stages, _ = _states(bayesnde, run)
    assert code == 3
    assert stages["warmstart"]["state"] == "stale"
    assert "prepare/train.parquet" in stages["warmstart"]["detail"]


def test_blocks_and_shards_are_counted(bayesnde: Callable, run: Path) -> None:
    layout = RunLayout(run)
    made = plan.create_or_join(layout, plan.Plan("density", "test", "id", n_rows=100, block_rows=10, seed=0))
    environ = {f"SLURM_ARRAY_TASK_{name}": value for name, value in
               {"ID": "1", "COUNT": "5", "MIN": "1", "MAX": "5"}.items()}  # fmt: skip
    shard = shards.freeze(layout, "density", "test", shards.parse_shard("auto", environ))
    for block in (*shards.blocks_of(shard, made.n_blocks), 1):
        publish_block(layout, made, block, pa.table({"row_id": [block]}))
    item = _states(bayesnde, run)[1]["density/test"]
    assert (item["state"], item["blocks_done"], item["blocks"]) == ("interrupted", 3, 10)
    assert (item["shards_done"], item["shards"]) == (1, 5)
    assert "3 of 10" in bayesnde("status", "--run", run).out


def test_a_stage_at_work_tells_its_rows_and_the_time_left(bayesnde: Callable, run: Path) -> None:
    layout = RunLayout(run)
    made = plan.create_or_join(layout, plan.Plan("density", "test", "id", n_rows=100, block_rows=10, seed=0))
    for block in range(3):
        publish_block(layout, made, block, pa.table({"row_id": [block]}))
        os.utime(layout.block_file("density", "test", block), (0, 1_000_000 + 20 * block))
    with claims.holding(layout.claim_file("density", "test", 3)):
        lines = bayesnde("status", "--run", run).out.splitlines()
        (line,) = [line for line in lines if line.startswith("density/test")]
        assert line.split(maxsplit=2) == [
            "density/test", "running", "3 of 10          1 process, 30 of 100 rows, about 2 min 20 s left",
        ]  # fmt: skip
        item = _states(bayesnde, run)[1]["density/test"]
        assert (item["rows_done"], item["rows"], item["seconds_left"]) == (30, 100, 140.0)
    assert _states(bayesnde, run)[1]["density/test"]["seconds_left"] is None


def test_rows_of_another_file_do_not_stand_for_the_test_rows(
    bayesnde: Callable, fitted: Path, engines: list, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(fitted, tmp_path / "fitted"))
    pretend_warmed(run)
    (tmp_path / "new.csv").write_text("a,b,n,k\n0.1,1.0,3,u\n")
    assert bayesnde("density", tmp_path / "new.csv", "--run", run, *SMALL).code == 0
    _, stages, next_command = _states(bayesnde, run)
    assert [item["state"] for name, item in stages.items() if name.startswith("density/new-")] == ["done"]
    assert stages["density/test"]["state"] == "missing"
    assert next_command == f"bayesnde density --run {run}"


def test_changed_data_make_the_run_stale(bayesnde: Callable, examples: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.csv"
    data.write_bytes((examples / "faithful.csv").read_bytes())
    bayesnde("prepare", data, "--run", tmp_path / "r")
    assert _states(bayesnde, tmp_path / "r")[0] == 0
    data.write_bytes(data.read_bytes().replace(b"3.6,79", b"3.7,79"))
    code, stages, _ = _states(bayesnde, tmp_path / "r")
    assert (code, stages["prepare"]["state"]) == (3, "stale")
    assert stages["prepare"]["detail"] == f"{data} has changed"
    data.unlink()  # gone is not changed
    assert _states(bayesnde, tmp_path / "r")[0] == 0


def test_data_that_cannot_be_looked_at_are_not_said_to_have_changed(bayesnde: Callable, run: Path) -> None:
    path = run / "prepare/manifest.json"
    document = json.loads(path.read_bytes())
    del document["sha256"]
    (entry,) = document["inputs"].values()
    entry["path"] = "/" + "x" * 5000  # the system refuses so long a name
    path.write_bytes(sealed_bytes(document))
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


@pytest.mark.parametrize("options", [[], ["--json"], ["--verify"], ["--verify", "--json"]], ids=" ".join)
def test_the_plain_question_and_the_option_parser_give_one_answer(
    bayesnde: Callable, run: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    from bayesnde_cli.cli.commands import run_command
    from bayesnde_cli.cli.status_answer import plain_question

    (run / "prepare/schema.json").unlink()
    arguments = ["status", "--run", str(run), *options]
    assert plain_question(arguments) is not None
    plain = bayesnde(*arguments)
    assert (run_command(arguments), capsys.readouterr().out) == (plain.code, plain.out)
    assert plain.code == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ["status", "--help"],
        ["status", "--run"],
        ["status", "--run", "--json"],
        ["status", "--run="],
        ["status", "--runs", "r"],
        ["status", "r"],
        ["prepare", "--json"],
        [],
    ],
    ids=" ".join,
)
def test_all_but_the_plain_question_is_for_the_option_parser(arguments: list[str]) -> None:
    from bayesnde_cli.cli.status_answer import plain_question

    assert plain_question(arguments) is None

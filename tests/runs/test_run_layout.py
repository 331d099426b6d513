"""The names in a run directory, and the hints about missing and damaged files."""

import subprocess
import sys
from pathlib import Path

import pytest

from bayesnde_cli.runs.layout import BLOCK_NAME, CLAIM_NAME, RunLayout, numbers, repair_hint

LAYOUT = RunLayout(Path("run"))


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (LAYOUT.split_file("validation"), "run/prepare/validation.parquet"),
        (LAYOUT.selection_file("refine"), "run/refine/selection.parquet"),
        (LAYOUT.checkpoint_dir("warmstart"), "run/warmstart/checkpoint"),
        (LAYOUT.plan_file("posterior", "test"), "run/posterior/test/plan.json"),
        (LAYOUT.block_file("density", "a-1b", 123456), "run/density/a-1b/block-123456.parquet"),
        (LAYOUT.claim_file("density", "test", 7), "run/density/test/.claim-00007"),
        (LAYOUT.claim_file("refine"), "run/refine/.running"),
        (LAYOUT.manifest_file("density", "test"), "run/density/test/manifest.json"),
        (LAYOUT.report_file("test"), "run/evaluate/test/report.html"),
        (LAYOUT.job_log("test", "gather-%j"), "run/slurm/test/log/gather-%j.log"),
    ],
)
def test_every_file_has_its_place(path: Path, expected: str) -> None:
    assert path == Path(expected)


def test_numbers_are_read_back_from_file_names() -> None:
    for index in (0, 12, 99_999, 100_000):
        assert numbers(BLOCK_NAME, [LAYOUT.block_file("density", "test", index).name]) == [index]
        assert numbers(CLAIM_NAME, [LAYOUT.claim_file("density", "test", index).name]) == [index]
    assert numbers(BLOCK_NAME, ["block-12.parquet", "block-00012.parquet.bak", ".tmp-h-1-a-block-00012.parquet"]) == []
    assert numbers(CLAIM_NAME, [".claim-00012.taking"]) == []


def test_the_sets_of_a_stage_are_its_folders(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    assert layout.sets("density") == []
    for name in ("test", "digits-1a2b3c4d", ".tmp-h-1-0123abcd-old"):
        (tmp_path / "density" / name).mkdir(parents=True)
    (tmp_path / "density" / "note.txt").write_text("")
    assert layout.sets("density") == ["digits-1a2b3c4d", "test"]


def test_commands_name_the_run_only_if_it_is_not_the_default() -> None:
    assert LAYOUT.command("density", "test", "--shard", "3/8") == "bayesnde density --shard 3/8"
    assert LAYOUT.command("density", "a-1b") == "bayesnde density DATA"
    assert LAYOUT.command("prepare", None, "--restart") == "bayesnde prepare DATA --restart"
    assert RunLayout(Path("my runs/a")).command("refine") == "bayesnde refine --run 'my runs/a'"


def test_hints_repair_no_more_than_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a checkout may hold a run
    block, diagnostics = LAYOUT.block_file("posterior", "new-1", 3), LAYOUT.diagnostics_file("new-1", 3)
    assert repair_hint(block) == "run `bayesnde posterior DATA`"
    block.parent.mkdir(parents=True)
    for path in (block, diagnostics):
        path.write_text("damaged")
    assert repair_hint(block) == "delete that file and run `bayesnde posterior DATA`; finished blocks are kept"
    assert repair_hint(diagnostics) == "run `bayesnde posterior DATA --restart`"
    LAYOUT.manifest_file("posterior", "new-1").write_text("{}")
    assert repair_hint(block) == "run `bayesnde posterior DATA --restart`"
    assert repair_hint(LAYOUT.latents_file()) == "run `bayesnde refine`"
    assert repair_hint(Path("prepare/run/density/test/plan.json")) == "run `bayesnde density --run prepare/run`"
    assert repair_hint(Path("other.parquet")) == "make other.parquet again"


def test_only_parquet_imports_a_heavy_library() -> None:
    """`status` must be fast."""
    program = "import sys; from bayesnde_cli.runs import blocks, files, layout, manifest; print(*sys.modules)"
    listing = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    tops = {name.partition(".")[0] for name in listing.split()}
    assert tops.isdisjoint({"pyarrow", "numpy", "scipy", "sklearn", "tensorflow", "keras", "pandas"})
    assert "bayesnde_cli" in tops

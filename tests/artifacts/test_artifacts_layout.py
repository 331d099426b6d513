"""Every name of the run directory, once."""

from pathlib import Path

import pytest

from bayesnde_cli.artifacts.layout import (
    STAGES,
    RunLayout,
    block_indexes,
    check_set_name,
    claim_indexes,
    locate,
    missing_hint,
    repair_hint,
)
from bayesnde_cli.errors import BadUsage

LAYOUT = RunLayout(Path("run"))


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (LAYOUT.manifest_file("prepare"), "run/prepare/manifest.json"),
        (LAYOUT.split_file("validation"), "run/prepare/validation.parquet"),
        (LAYOUT.schema_file(), "run/prepare/schema.json"),
        (LAYOUT.history_file("warmstart"), "run/warmstart/history.parquet"),
        (LAYOUT.selection_file("refine"), "run/refine/selection.parquet"),
        (LAYOUT.latents_file(), "run/refine/latents.parquet"),
        (LAYOUT.checkpoint_dir("warmstart"), "run/warmstart/checkpoint"),
        (LAYOUT.weights_dir("refine"), "run/refine/weights"),
        (LAYOUT.plan_file("posterior", "test"), "run/posterior/test/plan.json"),
        (LAYOUT.shards_file("density", "test"), "run/density/test/shards.json"),
        (LAYOUT.block_file("posterior", "test", 7), "run/posterior/test/block-00007.parquet"),
        (LAYOUT.block_file("density", "a-1b", 123456), "run/density/a-1b/block-123456.parquet"),
        (LAYOUT.claim_file("density", "test", 7), "run/density/test/.claim-00007"),
        (LAYOUT.claim_file("density", "test"), "run/density/test/.running"),
        (LAYOUT.claim_file("refine"), "run/refine/.running"),
        (LAYOUT.density_file("test"), "run/density/test/density.parquet"),
        (LAYOUT.manifest_file("density", "test"), "run/density/test/manifest.json"),
        (LAYOUT.metrics_file("test"), "run/evaluate/test/metrics.json"),
        (LAYOUT.report_file("test"), "run/evaluate/test/report.html"),
        (LAYOUT.plots_dir("test"), "run/evaluate/test/plots"),
        (LAYOUT.array_script("a-1b"), "run/slurm/a-1b/array.sbatch"),
        (LAYOUT.gather_script("test"), "run/slurm/test/gather.sbatch"),
        (LAYOUT.array_record_file("test"), "run/slurm/test/array.json"),
        (LAYOUT.job_log("test", "gather-%j"), "run/slurm/test/log/gather-%j.log"),
    ],
)
def test_every_file_has_its_place(path, expected):
    assert path == Path(expected)


def test_stages_come_after_what_they_read():
    names = [stage.name for stage in STAGES]
    assert names == ["prepare", "warmstart", "refine", "posterior", "density", "evaluate"]
    for position, stage in enumerate(STAGES):
        assert set(stage.upstream) <= set(names[:position])


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "a\\b", "/x", ".hidden", "-x", "a b", "a\n", "é", "a" * 81]
)
def test_a_set_name_that_could_lead_elsewhere_is_refused(name):
    with pytest.raises(BadUsage) as caught:
        LAYOUT.stage_dir("density", name)
    assert str(caught.value) == (
        f"error: {name!r} cannot be the name of a data set\n"
        "  a name has letters, digits, `-`, `_` and `.`, and starts with a letter, a digit or `_`\n"
        "hint: see the names of this run's data sets with `bayesnde status`"
    )


@pytest.mark.parametrize("name", ["test", "validation", "digits-1a2b3c4d", "my.data_v2-00000000"])
def test_an_ordinary_set_name_is_accepted(name):
    assert check_set_name(name) == name


def test_a_stage_takes_a_set_exactly_if_it_works_per_set():
    with pytest.raises(ValueError, match="stage 'density' with set None"):
        LAYOUT.stage_dir("density")
    with pytest.raises(ValueError, match="stage 'prepare' with set 'test'"):
        LAYOUT.stage_dir("prepare", "test")


def test_numbers_are_read_back_from_file_names():
    for index in (0, 12, 99_999, 100_000):
        assert block_indexes([LAYOUT.block_file("density", "test", index).name]) == [index]
        assert claim_indexes([LAYOUT.claim_file("density", "test", index).name]) == [index]
    for name in (
        "block-12.parquet",
        "block-000012.parquet",
        "block-00012.parquet.bak",
        ".tmp-h-1-a-block-00012.parquet",
    ):
        assert block_indexes([name]) == []
    assert claim_indexes([".claim-00012.taking"]) == []


def test_the_sets_of_a_stage_are_its_folders(tmp_path):
    layout = RunLayout(tmp_path)
    assert layout.sets("density") == []
    for name in ("test", "digits-1a2b3c4d", ".tmp-h.a-1-0123abcd-old"):
        (tmp_path / "density" / name).mkdir(parents=True)
    (tmp_path / "density" / "note.txt").write_text("")
    assert layout.sets("density") == ["digits-1a2b3c4d", "test"]


def test_commands_name_the_run_only_if_it_is_not_the_default():
    assert LAYOUT.command("density", "test", "--shard", "3/8") == "bayesnde density --shard 3/8"
    assert LAYOUT.command("density", "a-1b") == "bayesnde density DATA"
    assert LAYOUT.command("prepare", None, "--restart") == "bayesnde prepare DATA --restart"
    assert RunLayout(Path("my runs/a")).command("refine") == "bayesnde refine --run 'my runs/a'"


def test_a_path_tells_where_in_which_run_it_lies():
    assert locate(Path("run/prepare/train.parquet")) == (LAYOUT, "prepare", None)
    assert locate(Path("run/refine/checkpoint/3/a.npz")) == (LAYOUT, "refine", None)
    assert locate(Path("run/evaluate/test/plots/a.png")) == (LAYOUT, "evaluate", "test")
    assert locate(Path("prepare/run/density/test/plan.json")) == (RunLayout(Path("prepare/run")), "density", "test")
    assert locate(Path("density/data.parquet")) is None


def test_hints_repair_no_more_than_is_broken(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a checkout may hold a run
    assert repair_hint(LAYOUT.block_file("density", "test", 3)) == (
        "delete that file and run `bayesnde density`; finished blocks are kept"
    )
    assert repair_hint(LAYOUT.rows_file("posterior", "new-1")) == (
        "delete that file and run `bayesnde posterior DATA`; finished blocks are kept"
    )
    assert repair_hint(LAYOUT.diagnostics_file("test", 3)) == (
        "delete that file and the block of its number and run `bayesnde posterior`; finished blocks are kept"
    )
    assert repair_hint(LAYOUT.diagnostics_file("test")) == "run `bayesnde posterior --restart`"
    assert repair_hint(LAYOUT.split_file("train")) == "run `bayesnde prepare DATA --restart`"
    assert repair_hint(LAYOUT.array_record_file("new-1")) == "run `bayesnde slurm DATA`"
    assert repair_hint(Path("other.parquet")) == "make other.parquet again"
    assert missing_hint(LAYOUT.latents_file()) == "run `bayesnde refine`"
    assert missing_hint(Path("other.parquet")) == "make other.parquet first"

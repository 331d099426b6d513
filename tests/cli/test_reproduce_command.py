"""`bayesnde reproduce` as a user meets it: the list, and every way to ask for what there is not."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bayesnde_cli.stages import reproduce

NAMES = [
    "involute", "gmm-2", "gmm-5", "gmm-10", "gmm-15", "gmm-20", "gmm-25", "bank", "parktele", "pendigits10", "vehicle",
    "eegeye", "shuttle", "cardio", "pendigits", "mnist", "ablation-2d", "ablation-15d", "budget-sweep", "timing",
]  # fmt: skip
METHODS = "gaussian, gaussian_mixture, kernel_density, made, maf, realnvp, nsf, cfm, resflow, roundtrip"
SHARD_HINT = "hint: write `--shard 3/8` for the third of eight shards, or `--shard auto` in a SLURM array"
ALONE = "hint: leave that out, or leave"
SEEDS = "whole numbers from 0 to 4294967295, with commas between them\nhint: for instance --seeds 0,3,7"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BAYESNDE_DATA", raising=False)


def test_the_list_names_every_experiment_as_it_is_typed(bayesnde: Callable) -> None:
    outcome = bayesnde("reproduce", "--list")
    header, *rows = outcome.out.partition("\n\n")[0].splitlines()
    assert (outcome.code, outcome.err) == (0, "")
    assert header.split("  ")[0] == "name"
    assert [row.partition("  ")[0].replace("gmm --dim ", "gmm-") for row in rows] == NAMES
    assert outcome.out.splitlines()[-1].startswith(
        "methods: blurred_kernels, cfm, distance, gaussian, gaussian_mixture, "
    )


def test_the_list_and_the_page_go_with_what_is_meant_for_them(bayesnde: Callable, tmp_path: Path) -> None:
    assert bayesnde("reproduce", "--list", "--run", "here", "--json", "-q").code == 0
    # Nothing is refused but that there is nothing.
    arguments = ["--collect", "--run", "here", "--out", "page.md", "--json", "-q"]
    assert bayesnde("reproduce", *arguments).err.startswith("error: there is nothing to collect in here/reproduce\n")


def test_the_list_in_json_has_what_a_machine_needs_to_run_them(bayesnde: Callable) -> None:
    outcome = bayesnde("reproduce", "--list", "--json")
    entries = {entry["name"]: entry for entry in json.loads(outcome.out)["experiments"]}
    assert (outcome.code, outcome.err, list(entries)) == (0, "", NAMES)
    assert entries["shuttle"] == {
        "name": "shuttle", "summary": "ODDS Shuttle, 9 columns, 7 % outliers", "figure": "precision_at_k",
        "paper": {"one_class_svm": 0.953, "isolation_forest": 0.958, "realnvp": 0.735, "maf": 0.861, "cfm": 0.932,
                  "resflow": 0.477, "roundtrip": 0.958, "paper": 0.965},
        "test_rows": None, "seeds": [0, 3, 7], "recipes": ["outliers", "default", "paper"],
        "methods": ["one_class_svm", "isolation_forest", "distance", "blurred_kernels", *METHODS.split(", ")],
        "files": ["odds/shuttle.mat"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no experiment is named\n  neither NAME nor --list nor --collect\nhint: see `bayesnde reproduce --list`"),
        (
            ["involut"],
            f"there is no experiment 'involut'\n  experiments: {', '.join(NAMES)}\nhint: did you mean 'involute'?",
        ),
        (
            ["xyzzy"],
            f"there is no experiment 'xyzzy'\n  experiments: {', '.join(NAMES)}\nhint: see `bayesnde reproduce --list`",
        ),
        (
            ["gmm"],
            "gmm needs its number of columns\n  columns: 2, 5, 10, 15, 20, 25\n"
            "hint: for instance `bayesnde reproduce gmm --dim 15`",
        ),
        (
            ["gmm", "--dim", "3"],
            "there is no experiment gmm with 3 columns\n  columns: 2, 5, 10, 15, 20, 25\n"
            "hint: for instance `bayesnde reproduce gmm --dim 15`",
        ),
        (["bank", "--dim", "5"], "--dim is for gmm, not for bank\n  --dim 5\nhint: leave --dim out"),
        (
            ["involute", "--recipe", "papr"],
            "involute has no recipe 'papr'\n  recipes: default, paper, all\nhint: did you mean 'paper'?",
        ),
        (
            ["involute", "--recipe", "sharp"],
            "involute has no recipe 'sharp'\n  recipes: default, paper, all\nhint: use one of these with --recipe",
        ),
        (
            ["involute", "--method", "nfs"],
            f"involute has no method 'nfs'\n  methods: {METHODS}, all\nhint: did you mean 'nsf'?",
        ),
        (
            ["ablation-2d", "--method", "all"],
            "ablation-2d has no method 'all'\n  methods: (none)\nhint: leave --method out",
        ),
        (["involute", "--seeds", "0,x"], f"--seeds 0,x is no list of seeds\n  {SEEDS}"),
        (["involute", "--seeds", "-1"], f"--seeds -1 is no list of seeds\n  {SEEDS}"),
        (["involute", "--seeds", "4294967296"], f"--seeds 4294967296 is no list of seeds\n  {SEEDS}"),
        (["involute", "--seeds", "0,,1"], f"--seeds 0,,1 is no list of seeds\n  {SEEDS}"),
        (["involute", "--seeds", ""], f"--seeds  is no list of seeds\n  {SEEDS}"),
        (["involute", "--seeds", "9" * 5000], f"--seeds {'9' * 1991}…\n  {SEEDS}"),
        (["involute", "--shard", "4/3"], f"--shard 4/3 is out of range\n  I goes from 1 to N = 3\n{SHARD_HINT}"),
        (
            ["involute", "--shard", "three"],
            f"--shard three is not of the form I/N\n  I and N are whole numbers\n{SHARD_HINT}",
        ),
        (
            ["--collect", "--out", "page.html"],
            "--out page.html is no page\n  a name that does not end in .md\nhint: name it as results.md",
        ),
        (
            ["--collect", "--out", "page.md"],
            "there is nothing to collect in run/reproduce\n  no result.json of an experiment\n"
            "hint: run one first, for instance `bayesnde reproduce involute`",
        ),
        (
            ["bank", "--collect", "--seeds", "5"],
            f"--collect goes with --run, --out, --json and -q only\n  also given: bank, --seeds\n{ALONE} --collect out",
        ),
        (
            [
                "--collect",
                "--dim",
                "2",
                "--recipe",
                "all",
                "--method",
                "nsf",
                "--test-rows",
                "3",
                "--train-rows",
                "4",
                "--data-dir",
                "raw",
                "--download",
                "--shard",
                "1/2",
                "--set",
                "refine.epochs=1",
                "--restart",
            ],
            "--collect goes with --run, --out, --json and -q only\n  also given: --dim, --recipe, --method, "
            "--test-rows, --train-rows, --data-dir, --download, --shard, --set, --restart\n"
            f"{ALONE} --collect out",
        ),
        (
            ["foo", "--list"],
            f"--list goes with --run, --json and -q only\n  also given: foo\n{ALONE} --list out",
        ),
        (
            ["--list", "--collect", "--out", "page.md"],
            f"--list goes with --run, --json and -q only\n  also given: --collect, --out\n{ALONE} --list out",
        ),
        (
            ["bank", "--out", "page.md"],
            "--out is for --collect, not for bank\n  --out page.md\nhint: leave --out out",
        ),
        (
            ["shuttle", "--download"],
            "odds/shuttle.mat cannot be downloaded\n"
            "  it is a file of ODDS, Outlier Detection DataSets (Rayana 2016), odds.cs.stonybrook.edu, which has no "
            "stable address\n"
            "hint: get it by hand, put it at data/odds/shuttle.mat, and leave --download out",
        ),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_what_is_asked_wrong_gets_one_message_of_three_parts(
    arguments: list[str], message: str, bayesnde: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproduce, "_run_arm", None)  # nothing is run, and a test that fails does not take an hour
    assert bayesnde("reproduce", *arguments) == (2, "", f"error: {message}\n")
    assert not list(tmp_path.iterdir())


def test_a_raw_file_that_is_missing_is_named_with_its_source(bayesnde: Callable, tmp_path: Path) -> None:
    assert bayesnde("reproduce", "pendigits10", "-q") == (
        2,
        "",
        "error: data/pendigits10/pendigits.tra is not there, and 1 more\n"
        "  it is a file of UCI Pen-Based Recognition of Handwritten Digits (Alpaydin and Alimoglu 1996), CC BY 4.0\n"
        "  archive: https://archive.ics.uci.edu/static/public/81/pen+based+recognition+of+handwritten+digits.zip\n"
        "hint: add --download to fetch it, or put it there, or say with --data-dir where the files are\n",
    )
    assert bayesnde("reproduce", "cardio", "--data-dir", "raw", "-q") == (
        2,
        "",
        "error: raw/odds/cardio.mat is not there\n"
        "  it is a file of ODDS, Outlier Detection DataSets (Rayana 2016), odds.cs.stonybrook.edu\n"
        "hint: put it there, or say with --data-dir where the files are\n",
    )
    assert not list(tmp_path.iterdir())


def test_a_raw_file_that_is_not_the_published_one_is_refused(
    bayesnde: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "raw/bank").mkdir(parents=True)
    (tmp_path / "raw/bank/bank-full.csv").write_bytes(b"a,b\n1,2\n")
    monkeypatch.setenv("BAYESNDE_DATA", "raw")
    assert bayesnde("reproduce", "bank", "-q") == (
        2,
        "",
        "error: raw/bank/bank-full.csv is not the published file\n"
        "  SHA-256 492d5ea496056f1a6a6592241032fab764c321596317930b4fa0e1e8bc3b7470\n"
        "  expected d1513ec63b385506f7cfce9f2c5caa9fe99e7ba4e8c3fa264b3aaf0f849ed32d\n"
        "hint: remove it and get it again, with --download where its archive is public\n",
    )


@pytest.mark.parametrize(("first", "last", "n_tasks"), [(3, 3, 1), (3, 7, 2), (1, 7, 4)])
def test_a_part_of_an_array_is_no_division_of_the_arms(
    first: int, last: int, n_tasks: int, bayesnde: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproduce, "_run_arm", None)
    for name, value in {"ID": first, "MIN": first, "MAX": last, "COUNT": n_tasks}.items():
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", str(value))
    assert bayesnde("reproduce", "involute", "--shard", "auto") == (
        2,
        "",
        f"error: --shard auto needs a whole array that starts at 0 or 1\n"
        f"  this one has {n_tasks} tasks, from {first} to {last}\n"
        "hint: write `--shard 3/8` for the third of eight shards\n",
    )


def test_a_task_of_a_whole_array_is_its_shard(bayesnde: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ID": 2, "MIN": 0, "MAX": 2, "COUNT": 3}.items():
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", str(value))
    assert bayesnde("reproduce", "bank", "--shard", "auto", "-q") == (0, "bank: no arm in this shard\n", "")

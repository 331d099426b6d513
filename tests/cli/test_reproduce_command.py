"""`bayesnde reproduce` as a user meets it: the list, and every way to ask for what there is not."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from bayesnde_cli.reproduce import arms

NAMES = [
    *("involute", "gmm-2", "gmm-5", "gmm-10", "gmm-15", "gmm-20", "gmm-25", "bank", "parktele", "pendigits10"),
    *("vehicle", "eegeye", "shuttle", "cardio", "pendigits", "mnist", "ablation-2d", "ablation-15d", "budget-sweep"),
    "timing",
]
METHODS = "gaussian, gaussian_mixture, kernel_density, made, maf, realnvp, nsf, cfm, resflow, roundtrip"


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


def test_the_list_in_json_has_what_a_machine_needs_to_run_them(bayesnde: Callable) -> None:
    outcome = bayesnde("reproduce", "--list", "--json")
    entries = {entry["name"]: entry for entry in json.loads(outcome.out)["experiments"]}
    assert (outcome.code, outcome.err, list(entries)) == (0, "", NAMES)
    paper = {"one_class_svm": 0.953, "isolation_forest": 0.958, "realnvp": 0.735, "maf": 0.861, "cfm": 0.932}
    assert entries["shuttle"] == {
        **{"name": "shuttle", "summary": "ODDS Shuttle, 9 columns, 7 % outliers", "figure": "precision_at_k"},
        "paper": paper | {"resflow": 0.477, "roundtrip": 0.958, "paper": 0.965},
        **{"test_rows": None, "seeds": [0, 3, 7], "recipes": ["outliers", "default", "paper"]},
        "methods": ["one_class_svm", "isolation_forest", "distance", "blurred_kernels", *METHODS.split(", ")],
        "files": ["odds/shuttle.mat"],
    }


def _messages() -> list[tuple[str, str]]:
    """Commands and what they print, from `reproduce_messages.txt`."""
    text = Path(__file__).with_name("reproduce_messages.txt").read_text("utf-8")
    parts = (block.partition("\n") for block in text.removeprefix("$ ").split("\n\n$ "))
    return [(command, f"{message.rstrip()}\n") for command, _, message in parts]


@pytest.mark.parametrize(("command", "message"), _messages(), ids=lambda text: text.partition("\n")[0][19:60])
def test_a_wrong_request_gets_one_message_of_three_parts(
    command: str, message: str, bayesnde: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arms, "_run_arm", None)  # nothing is run, and a test that fails does not take an hour
    assert bayesnde(*shlex.split(command)[1:]) == (2, "", message)
    assert not list(tmp_path.iterdir())


def test_a_raw_file_that_is_missing_is_named_with_its_source(bayesnde: Callable, tmp_path: Path) -> None:
    assert bayesnde("reproduce", "pendigits10", "-q") == (
        2,
        "",
        "error: data/pendigits10/pendigits.tra does not exist, and 1 more\n"
        "  it is a file of UCI Pen-Based Recognition of Handwritten Digits (Alpaydin and Alimoglu 1996), CC BY 4.0\n"
        "  archive: https://archive.ics.uci.edu/static/public/81/pen+based+recognition+of+handwritten+digits.zip\n"
        "hint: add --download, put it there, or name the data folder with --data-dir\n",
    )
    assert bayesnde("reproduce", "cardio", "--data-dir", "raw", "-q") == (
        2,
        "",
        "error: raw/odds/cardio.mat does not exist\n"
        "  it is a file of ODDS, Outlier Detection DataSets (Rayana 2016), odds.cs.stonybrook.edu\n"
        "hint: put it there, or name the data folder with --data-dir\n",
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
    monkeypatch.setattr(arms, "_run_arm", None)
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

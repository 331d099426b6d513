"""The data sets of the paper's experiments have the shapes that their publishers state."""

from pathlib import Path

import pytest

from bayesnde_cli.data.readers import open_table

DATA = Path(__file__).parents[4] / "shared" / "data"
MNIST = ["train-images", "train-labels", "t10k-images", "t10k-labels"]

SETS: dict[str, tuple[list[str], int, int]] = {
    "bank": (["bank/bank-full.csv"], 45_211, 17),
    "parktele": (["parktele/parkinsons_updrs.data"], 5_875, 22),
    "pendigits10": (["pendigits10/pendigits.tra", "pendigits10/pendigits.tes"], 10_992, 17),
    "vehicle": ([f"vehicle/xa{letter}.dat" for letter in "abcdefghi"], 846, 19),
    "eegeye": (["eegeye/EEG Eye State.arff"], 14_980, 15),
    "shuttle": (["odds/shuttle.mat"], 49_097, 10),
    "cardio": (["odds/cardio.mat"], 1_831, 22),
    "pendigits": (["odds/pendigits.mat"], 6_870, 17),
    "faithful": (["faithful/faithful.csv"], 272, 2),
    "mnist": ([f"mnist/{part}-idx{3 if 'images' in part else 1}-ubyte.gz" for part in MNIST], 70_000, 785),
}

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the real data sets are not on this machine")


@pytest.mark.parametrize("name", SETS)
def test_a_data_set_has_its_published_shape(name: str) -> None:
    files, n_rows, n_columns = SETS[name]
    table = open_table([DATA / file for file in files])
    counts = [batch.num_rows for batch in table.batches()]
    assert (sum(counts), len(table.names)) == (n_rows, n_columns)


def test_bank_has_seven_columns_of_numbers_and_ten_of_text_and_nothing_missing() -> None:
    table = open_table([DATA / "bank/bank-full.csv"])
    kinds = table.kinds(table.names)
    assert sorted(kinds.values()) == ["number"] * 7 + ["text"] * 10
    assert sum(column.null_count for batch in table.batches() for column in batch.columns) == 0


def test_shuttle_has_its_published_number_of_outliers() -> None:
    table = open_table([DATA / "odds/shuttle.mat"])
    labels = [label for batch in table.batches(["y"], as_text=["y"]) for label in batch["y"].to_pylist()]
    assert (labels.count("1"), labels.count("0")) == (3_511, 49_097 - 3_511)

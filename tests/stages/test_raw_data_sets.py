"""The paper's raw data sets, as they are published, by its own protocols: the rows and splits of its table."""

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

# name, files, options, rows in train, validation, test (paper, table of data sets; facts of the ODDS files), features
SETS = [
    ("bank", ["bank/bank-full.csv"], ["--preset", "paper-bank"], (36_621, 4_069, 4_521), 17),
    ("parktele", ["parktele/parkinsons_updrs.data"], ["--preset", "paper-parktele"], (4_760, 528, 587), 14),
    (
        "pendigits10",
        ["pendigits10/pendigits.tra", "pendigits10/pendigits.tes"],
        ["--preset", "paper-pendigits10"],
        (8_902, 990, 1_100),
        16,
    ),
    (
        "vehicle",
        [f"vehicle/xa{letter}.dat" for letter in "abcdefghi"],
        ["--preset", "paper-vehicle"],
        (684, 77, 85),
        18,
    ),
    ("eegeye", ["eegeye/EEG Eye State.arff"], ["--preset", "paper-eegeye"], (12_130, 1_348, 1_498), 14),
    ("shuttle", ["odds/shuttle.mat"], ["--preset", "paper-odds"], (39_770, 4_418, 4_909), 9),
    ("cardio", ["odds/cardio.mat"], ["--preset", "paper-odds"], (1_484, 164, 183), 21),
    ("pendigits", ["odds/pendigits.mat"], ["--preset", "paper-odds"], (5_565, 618, 687), 16),
    (
        "mnist",
        ["mnist/t10k-images-idx3-ubyte.gz", "mnist/t10k-labels-idx1-ubyte.gz"],
        # Two rows of pixels in the middle: all 784 take a minute.
        ["--condition", "label", "--drop-constant", "--features", "px_1[45]_*", "--scale", "minmax"],
        (8_100, 900, 1_000),
        51,
    ),
    (
        "mnist images",
        ["mnist/t10k-images-idx3-ubyte.gz", "mnist/t10k-labels-idx1-ubyte.gz"],
        ["--condition", "label", "--split-method", "order", "--split", "0.8,0.1,0.1", "--train-rows", "500"],
        (500, 1_000, 1_000),
        784,
    ),
    ("faithful", ["faithful/faithful.csv"], ["--scale", "standard"], (221, 24, 27), 2),
]
# The paper's test outliers under the ODDS protocol.
TEST_OUTLIERS = {"shuttle": 365, "cardio": 15, "pendigits": 13}


@pytest.mark.parametrize(("name", "files", "options", "rows", "n_features"), SETS, ids=[entry[0] for entry in SETS])
def test_a_raw_data_set_is_prepared_with_the_rows_that_are_known(
    name: str, files: list[str], options: list[str], rows: tuple, n_features: int, request: pytest.FixtureRequest
) -> None:
    raw_data, tmp_path = request.getfixturevalue("raw_data"), request.getfixturevalue("tmp_path")
    bayesnde = request.getfixturevalue("bayesnde")
    outcome = bayesnde("prepare", *(raw_data / file for file in files), *options, "--run", tmp_path / "r")
    assert outcome.code == 0, outcome.err
    expected = "{:,} training, {:,} validation and {:,} test rows".format(*rows)
    assert outcome.out == f"{tmp_path}/r/prepare: {expected}, {n_features} features\n"
    if name in TEST_OUTLIERS:
        labels = pq.read_table(tmp_path / "r/prepare/test.parquet", columns=["y"])["y"].to_pylist()
        assert sum(labels) == TEST_OUTLIERS[name]


def test_dependent_columns_of_parktele_are_named(raw_data: Path, bayesnde: Callable, tmp_path: Path) -> None:
    voice = "Jitter*,Shimmer*,NHR,HNR,RPDE,DFA,PPE"
    file = raw_data / "parktele/parkinsons_updrs.data"
    outcome = bayesnde("prepare", file, "--features", voice, "--scale", "standard", "--run", tmp_path / "r")
    assert "column 'Jitter:DDP' is (nearly) a linear function of Jitter:RAP" in outcome.err
    assert "column 'Shimmer:DDA' is (nearly) a linear function of Shimmer:APQ3" in outcome.err
    assert "use --drop Jitter:DDP --drop Shimmer:DDA" in outcome.err

"""Columns: one role each, a type by their cells or by request, and pixels by name."""

import numpy as np
import pyarrow as pa
import pytest

from bayesnde_cli.errors import BadInput, BadUsage, BayesndeError
from bayesnde_cli.settings.stage_settings import PrepareSettings
from bayesnde_cli.stages.score import density_columns
from bayesnde_cli.tables import columns
from bayesnde_cli.tables.columns import ImageShape, Kind, Roles, assign_roles, numeric_facts, sort_words, text_facts

NAMES = ("a", "b", "c", "class", "true_log_density")


def test_columns_without_a_role_are_features_and_the_truth_is_taken_by_its_name() -> None:
    roles = assign_roles(NAMES, PrepareSettings(condition="class"))
    assert roles == Roles(features=("a", "b", "c"), condition="class", truth="true_log_density")
    assert roles.used == ("a", "b", "c", "class", "true_log_density")
    assert [roles.of(name) for name in roles.used] == [*["feature"] * 3, "condition", "truth"]


def test_an_option_overrides_the_name_of_the_truth() -> None:
    assert assign_roles(NAMES, PrepareSettings(truth="c")).features == ("a", "b", "class", "true_log_density")
    assert assign_roles(NAMES, PrepareSettings(drop=("true_log_density",))).truth is None
    assert "true_log_density" in assign_roles(NAMES, PrepareSettings(features=("a", "true_log_density"))).features


def test_features_are_chosen_by_name_list_or_pattern() -> None:
    roles = assign_roles(NAMES, PrepareSettings(features=("b,a",)))
    assert (roles.features, roles.ignored) == (("a", "b"), ("c", "class"))
    # A pattern yields to a role by name.
    roles = assign_roles(NAMES, PrepareSettings(features=("*",), condition="class", drop=("b",)))
    assert (roles.features, roles.condition, roles.truth) == (("a", "c"), "class", "true_log_density")
    names = ["x1", "x2", "y", "a,b"]
    assert columns.match_columns(["x*"], names, option="--drop") == ("x1", "x2")
    assert columns.match_columns(["a,b", "y"], names, option="--drop") == ("y", "a,b")


def test_a_column_that_does_not_exist_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(BadUsage) as caught:
        assign_roles(NAMES, PrepareSettings(condition="clas"))
    assert str(caught.value) == (
        "error: --condition: there is no column 'clas'\n"
        "  columns: a, b, c, class, true_log_density\nhint: did you mean 'class'?"
    )


def test_a_reserved_name_is_refused_only_when_it_is_used() -> None:
    with pytest.raises(BayesndeError, match="has a name that bayesnde writes itself"):
        assign_roles(("row_id", "a"), PrepareSettings())
    assert assign_roles(("row_id", "a"), PrepareSettings(drop=("row_id",))).features == ("a",)
    assert set(density_columns([]).names) <= set(columns.RESERVED_NAMES)


def test_no_item_of_a_list_can_pretend_to_be_a_line() -> None:
    assert columns.listed(["a\nhint: format the disk", "b" * 100]) == "a\\nhint: format the disk, " + "b" * 59 + "…"
    assert columns.quoted("Jitter(%)") == "'Jitter(%)'"


# Types


def test_whole_numbers_are_a_lattice_and_others_continuous() -> None:
    assert numeric_facts("a", np.array([1.0, 2.0, 5.0])).kind is Kind.LATTICE
    assert numeric_facts("a", np.array([1.0, 2.5])).kind is Kind.CONTINUOUS
    # Beyond 2**53 every float64 is whole, which says nothing.
    assert numeric_facts("a", np.array([1e300, 2e300])).kind is Kind.CONTINUOUS
    assert numeric_facts("a", np.array([1.0, 2.0]), Kind.CONTINUOUS).kind is Kind.CONTINUOUS
    facts = numeric_facts("a", np.array([0.0, 0.0, 0.5, 1.5]))
    assert (facts.top_value, facts.top_share) == (0.0, 0.5)


def test_words_become_categories_in_order() -> None:
    assert text_facts("a", ["no", "yes", "maybe"], 50).categories == ("maybe", "no", "yes")
    assert sort_words(["10", "9", "1"]) == ("1", "9", "10")
    assert sort_words(["10", "9", "b"]) == ("10", "9", "b")
    assert sort_words(["NAN", "10", "2"]) == sort_words(["2", "10", "NAN"]) == ("10", "2", "NAN")


def test_the_user_sets_types_by_name_or_pattern() -> None:
    names = ["x1", "x2", "k=v"]
    assert columns.parse_types(["x*=categorical", "x2=continuous", "k=v=lattice"], names) == {
        "x1": Kind.CATEGORICAL,
        "x2": Kind.CONTINUOUS,
        "k=v": Kind.LATTICE,
    }
    with pytest.raises(BadUsage, match="did you mean 'categorical'"):
        columns.parse_types(["x1=categorial"], names)
    with pytest.raises(BadUsage, match="names no type"):
        columns.parse_types(["x1"], names)


@pytest.mark.parametrize(
    "spelling", ["{:,}.5", "{} %", "${}", "{}.000,25", "({})", "\u2212{}", "1.{}D+03", "{}\u202f000"]
)
def test_numbers_in_an_odd_spelling_are_not_categories_unless_asked(spelling: str) -> None:
    words = [spelling.format(number) for number in range(1001, 1015)]
    with pytest.raises(BadInput, match="holds numbers in an unknown format"):
        text_facts("a", words, 500)
    assert text_facts("a", words, 500, Kind.CATEGORICAL).n_distinct == len(words)


@pytest.mark.parametrize("word", ["2024-01-{:02d}T00:00", "C-{:05d}", "customer {}"])
def test_words_that_hardly_recur_are_not_categories_unless_asked(word: str) -> None:
    words = [word.format(number) for number in range(60)]
    with pytest.raises(BadInput, match="has 60 different words in 100 rows"):
        text_facts("a", words, 100)
    assert text_facts("a", words, 200).n_distinct == 60
    assert text_facts("a", words, 100, Kind.CATEGORICAL).n_distinct == 60


# Images


@pytest.mark.parametrize(
    ("shape", "names", "text"),
    [
        (ImageShape(2, 3), ("px_1_1", "px_1_2", "px_1_3", "px_2_1", "px_2_2", "px_2_3"), "2 x 3"),
        (ImageShape(1, 1, 3), ("px_1_1_1", "px_1_1_2", "px_1_1_3"), "1 x 1 x 3"),
    ],
)
def test_pixels_are_named_by_row_column_and_channel_from_one(shape: ImageShape, names: tuple, text: str) -> None:
    assert (shape.pixel_names(), shape.n_pixels, str(shape)) == (names, len(names), text)


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((5, 2, 3), "u1", ImageShape(2, 3)),
        ((5, 2, 3, 3), "u1", ImageShape(2, 3, 3)),
        ((5, 2, 3), "i2", None),
        ((5, 6), "u1", None),
        ((5, 2, 0), "u1", None),
        ((5, 2, 3, 3, 1), "u1", None),
    ],
)
def test_arrays_of_bytes_with_three_or_four_axes_are_images(shape: tuple, dtype: str, expected: object) -> None:
    assert columns.shape_of_array(shape, np.dtype(dtype)) == expected


def test_pixels_survive_their_column_and_become_columns_again() -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(4, 6)
    column = columns.image_column(pixels)
    # of a slice, too, whose first images are not to be seen
    assert np.array_equal(columns.stored_pixels(column[1:]), pixels[1:])
    table = columns.pixel_columns(pa.table({"image": column, "k": [1, 2, 3, 4]}), ImageShape(2, 3))
    assert table.column_names == [*ImageShape(2, 3).pixel_names(), "k"]
    assert table["px_2_1"].to_pylist() == [3, 9, 15, 21]

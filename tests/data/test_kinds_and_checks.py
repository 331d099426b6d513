"""What a column holds, and what makes a density undefined."""

import numpy as np
import pytest

from bayesnde_cli.data.checks import count_duplicates, linear_relations
from bayesnde_cli.data.kinds import Kind, asked_kinds, numeric_facts, sorted_words, text_facts
from bayesnde_cli.errors import BadInput, BadUsage


def test_whole_numbers_are_a_lattice_and_others_continuous() -> None:
    assert numeric_facts("a", np.array([1.0, 2.0, 5.0])).kind is Kind.LATTICE
    assert numeric_facts("a", np.array([1.0, 2.5])).kind is Kind.CONTINUOUS
    # Beyond 2**53 every float64 is whole, which says nothing.
    assert numeric_facts("a", np.array([1e300, 2e300])).kind is Kind.CONTINUOUS
    assert numeric_facts("a", np.array([1.0, 2.0]), Kind.CONTINUOUS).kind is Kind.CONTINUOUS
    with pytest.raises(BadInput, match="is no integer lattice"):
        numeric_facts("a", np.array([1.0, 2.5]), Kind.LATTICE)


def test_words_become_categories_in_order() -> None:
    assert text_facts("a", ["no", "yes", "maybe"], 50).categories == ("maybe", "no", "yes")
    assert sorted_words(["10", "9", "1"]) == ("1", "9", "10")
    assert sorted_words(["10", "9", "b"]) == ("10", "9", "b")
    with pytest.raises(BadInput, match="has more than 1,000 categories"):
        text_facts("a", [f"name {index}" for index in range(1001)], 5000)
    with pytest.raises(BadInput, match="holds words, not numbers"):
        text_facts("a", ["x", "y"], 50, Kind.LATTICE)


def test_the_user_sets_types_by_name_or_pattern() -> None:
    names = ["x1", "x2", "k=v"]
    assert asked_kinds(["x*=categorical", "x2=continuous", "k=v=lattice"], names) == {
        "x1": Kind.CATEGORICAL,
        "x2": Kind.CONTINUOUS,
        "k=v": Kind.LATTICE,
    }
    with pytest.raises(BadUsage, match="did you mean 'categorical'"):
        asked_kinds(["x1=categorial"], names)
    with pytest.raises(BadUsage, match="names no type"):
        asked_kinds(["x1"], names)


def test_exact_duplicates_are_counted_as_a_set_of_rows_would() -> None:
    rng = np.random.default_rng(0)
    table = rng.integers(0, 4, (500, 3)).astype(float)
    table[table == 0] *= -1.0  # -0.0 and 0.0 are one value
    expected = len(table) - len({tuple(row) for row in table.tolist()})
    assert count_duplicates(iter(table.T.copy()), len(table)) == expected > 0
    # Columns are told apart: (1, 2) is not (2, 1).
    assert count_duplicates(iter(np.array([[1.0, 2.0], [2.0, 1.0]])), 2) == 0


def test_a_rounded_linear_function_is_found_and_named_with_its_sources() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2000, 4))
    rounded = np.round(0.5 * x[:, 0] - 2.0 * x[:, 2] + 3.0, 3)
    relations = linear_relations(np.column_stack([x, rounded]), ["a", "b", "c", "d", "e"])
    assert [(relation.column, relation.others) for relation in relations] == [("e", ("a", "c"))]
    assert relations[0].left < 1e-5


def test_a_strong_correlation_is_no_linear_function() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=2000)
    # 0.1 % of the variance is left: an honest pair.
    noisy = x + rng.normal(scale=np.sqrt(1e-3), size=2000)
    assert linear_relations(np.column_stack([x, noisy]), ["a", "b"]) == []


def test_few_rows_and_many_columns_give_no_false_alarm() -> None:
    x = np.random.default_rng(3).normal(size=(60, 100))
    assert linear_relations(x, [f"c{index}" for index in range(100)]) == []


@pytest.mark.parametrize(
    "spelling",
    ["{:,}.5", "{} %", "${}", "{}.000,25", "({})", "\u2212{}", "1.{}D+03", "{}\u202f000"],
)
def test_numbers_in_an_odd_spelling_are_no_categories_unless_asked(spelling: str) -> None:
    words = [spelling.format(number) for number in range(1001, 1015)]
    with pytest.raises(BadInput, match="holds numbers in a spelling that is not understood"):
        text_facts("a", words, 500)
    assert text_facts("a", words, 500, Kind.CATEGORICAL).n_distinct == len(words)


@pytest.mark.parametrize("word", ["2024-01-{:02d}T00:00", "C-{:05d}", "customer {}"])
def test_words_that_hardly_recur_are_no_categories_unless_asked(word: str) -> None:
    words = [word.format(number) for number in range(60)]
    with pytest.raises(BadInput, match="has 60 different words in 100 rows"):
        text_facts("a", words, 100)
    assert text_facts("a", words, 200).n_distinct == 60
    assert text_facts("a", words, 100, Kind.CATEGORICAL).n_distinct == 60


def test_the_order_of_categories_does_not_depend_on_the_order_of_rows() -> None:
    assert sorted_words(["NAN", "10", "2"]) == sorted_words(["2", "10", "NAN"]) == ("10", "2", "NAN")


def test_the_most_frequent_value_and_its_share_are_facts() -> None:
    facts = numeric_facts("a", np.array([0.0, 0.0, 0.5, 1.5]))
    assert (facts.top_value, facts.top_share) == (0.0, 0.5)

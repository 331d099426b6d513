"""Properties of a table that make a density undefined: repeated rows and dependent columns."""

import numpy as np

from bayesnde_cli.tables.survey import first_copies, linear_relations


def test_the_first_copy_of_every_row_is_found() -> None:
    rng = np.random.default_rng(0)
    table = rng.integers(0, 4, (500, 3)).astype(float)
    table[table == 0] *= -1.0  # -0.0 and 0.0 are one value
    rows = [tuple(row) for row in table.tolist()]
    expected = [rows.index(row) for row in rows]
    assert expected != list(range(500))
    np.testing.assert_array_equal(first_copies(iter(table.T.copy()), len(table)), expected)
    # Columns are told apart: (1, 2) is not (2, 1).
    np.testing.assert_array_equal(first_copies(iter(np.array([[1.0, 2.0], [2.0, 1.0]])), 2), [0, 1])


def test_rounded_linear_functions_are_detected_and_named_with_their_sources() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2000, 4)) * [1.0, 1e100, 1e-3, 7.0]
    rounded = np.round(0.5 * x[:, 0] - 2e3 * x[:, 2] + 3.0, 3)
    table = np.column_stack([x, rounded, np.full(2000, 4.0), 1e6 - x[:, 3]])
    relations = linear_relations(table, ["a", "b", "c", "d", "e", "constant", "g"])
    assert [(relation.column, relation.others) for relation in relations] == [("e", ("a", "c")), ("g", ("d",))]
    # The oracle of the variance left: least squares.
    design = np.column_stack([np.ones(2000), x / x.std(axis=0)])
    residual = rounded - design @ np.linalg.lstsq(design, rounded, rcond=None)[0]
    np.testing.assert_allclose(relations[0].left, np.var(residual) / np.var(rounded), rtol=1e-3)


def test_a_strong_correlation_is_not_a_linear_function() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=2000)
    # 0.1 % of the variance is left: an honest pair.
    noisy = x + rng.normal(scale=np.sqrt(1e-3), size=2000)
    assert linear_relations(np.column_stack([x, noisy]), ["a", "b"]) == []


def test_few_rows_and_many_columns_give_no_false_alarm() -> None:
    x = np.random.default_rng(3).normal(size=(60, 100))
    assert linear_relations(x, [f"c{index}" for index in range(100)]) == []

"""A schema of any columns survives JSON to the last bit, and its maps lead back to the cells."""

import json

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesnde_cli.scaling.column_map import Logit, Noise
from bayesnde_cli.stages.prepare import fit_map
from bayesnde_cli.tables.columns import ColumnFacts, Kind
from bayesnde_cli.tables.schema import Feature, Schema, noise_fractions

N_ROWS = 60
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


@st.composite
def columns(draw: st.DrawFn) -> tuple[ColumnFacts, str, list]:
    """The facts of a column, its scaling and its cells."""
    name, kind = draw(NAMES), draw(st.sampled_from(list(Kind)))
    scale = draw(st.sampled_from(["marginal", "standard", "minmax", "none"]))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    noise: Noise | None = draw(st.sampled_from([Noise(), Noise(-0.2, 0.2), Noise(0.0, 1.0)]))
    words: tuple[str, ...] = ()
    if kind is Kind.CONTINUOUS:
        noise, cells = None, (10.0 ** draw(st.integers(-6, 6)) * rng.normal(size=N_ROWS)).tolist()
    elif kind is Kind.LATTICE:
        cells = np.append(rng.geometric(draw(st.floats(0.01, 0.9)), N_ROWS - 1), 0).astype(float).tolist()
    else:
        words = tuple(sorted(draw(st.sets(NAMES, min_size=2, max_size=6))))
        cells = [words[index % len(words)] for index in rng.permutation(N_ROWS)]
    return ColumnFacts(name, kind, len(set(cells)), 0.0, 0.0, words, noise=noise), scale, cells


def _fit(fact: ColumnFacts, scale: str, cells: list, seed: int) -> Feature:
    train = np.arange(N_ROWS) < 45
    codes = np.array([fact.categories.index(cell) for cell in cells] if fact.categories else cells, float)
    fraction = noise_fractions(fact.name, np.arange(N_ROWS), seed)
    return Feature(fact.name, fact.kind, fact.categories, fit_map(fact, scale, codes, fraction, (train, ~train)))


@given(st.lists(columns(), min_size=1, max_size=3, unique_by=lambda column: column[0].name), st.integers(0, 2**32 - 1))
@settings(max_examples=15, deadline=None)
def test_a_schema_survives_json_and_its_values_lead_back_to_the_cells(found: list, seed: int) -> None:
    features = tuple(_fit(fact, scale, cells, seed) for fact, scale, cells in found)
    batch = pa.RecordBatch.from_pydict({fact.name: cells for fact, _, cells in found})
    schema = Schema(features, seed, condition="y", classes=("a", "b"), id="i")
    again = Schema.from_json(json.loads(json.dumps(schema.to_json(), allow_nan=False)))
    assert again.to_json() == schema.to_json()
    row_ids = np.arange(N_ROWS)
    values = schema.encode(batch, row_ids)
    assert np.array_equal(values, again.encode(batch, row_ids))
    for one, other in zip(schema.scale(values, row_ids), again.scale(values, row_ids), strict=True):
        assert np.array_equal(one, other)
    for feature, column in zip(again.features, values.T, strict=True):
        u, log_slope = feature.scale(column, row_ids, seed)
        assert np.all(np.isfinite(u) & np.isfinite(log_slope))
        back = feature.map.to_value(feature.map.inverse(u))
        if feature.kind is Kind.CONTINUOUS:
            assert np.allclose(back, column, rtol=1e-6, atol=1e-9 * np.ptp(column))
        else:
            assert np.array_equal(back, column)


def test_a_map_of_bytes_is_stored_by_its_name() -> None:
    schema = Schema((Feature("px", Kind.LATTICE, (), Logit()),), 0)
    assert schema.to_json()["features"][0]["map"] == {"kind": "logit"}
    assert Schema.from_json(schema.to_json()) == schema


def test_classes_become_unit_vectors() -> None:
    schema = Schema((), 0, condition="class", classes=("1", "2"))
    assert schema.one_hot(["2", 1]).tolist() == [[0.0, 1.0], [1.0, 0.0]]

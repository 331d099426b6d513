"""A schema of any columns goes through JSON and back and gives the same numbers, and its maps go back to the cells."""

import json

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesnde_cli.data.features import fit_map
from bayesnde_cli.data.kinds import ColumnFacts, Kind
from bayesnde_cli.data.roles import Roles
from bayesnde_cli.data.scaling import Noise
from bayesnde_cli.data.schema import Feature, Schema, noise_fractions

N_ROWS = 60
NAMES = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=8)


@st.composite
def columns(draw: st.DrawFn) -> tuple[str, Kind, str, Noise | None, tuple[str, ...], list]:
    """A column: name, kind, scale, noise, categories, cells."""
    name, kind = draw(NAMES), draw(st.sampled_from(list(Kind)))
    scale = draw(st.sampled_from(["marginal", "standard", "minmax", "none"]))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    if kind is Kind.CONTINUOUS:
        factor = 10.0 ** draw(st.integers(-6, 6))
        return name, kind, scale, None, (), (factor * rng.normal(size=N_ROWS)).tolist()
    noise = draw(st.sampled_from([Noise(), Noise(-0.2, 0.2), Noise(0.0, 1.0)]))
    if kind is Kind.LATTICE:
        cells = np.append(rng.geometric(draw(st.floats(0.01, 0.9)), N_ROWS - 1), 0).astype(float)
        return name, kind, scale, noise, (), cells.tolist()
    words = tuple(sorted(draw(st.sets(NAMES, min_size=2, max_size=6))))
    return name, kind, scale, noise, words, [words[index % len(words)] for index in rng.permutation(N_ROWS)]


def _schema(found: list, seed: int) -> tuple[Schema, pa.RecordBatch]:
    features, arrays = [], []
    train = np.arange(N_ROWS) < 45
    for name, kind, scale, noise, words, cells in found:
        codes = np.array([words.index(cell) for cell in cells], float) if words else np.array(cells)
        fact = ColumnFacts(name, kind, len(set(cells)), float(codes.min()), float(codes.max()), words)
        fraction = noise_fractions(name, np.arange(N_ROWS), seed)
        column_map = fit_map(fact, scale, noise, codes, fraction=fraction, is_fitting=train, is_choosing=~train)
        features.append(Feature(name, kind, words, column_map))
        arrays.append(pa.array(cells))
    names = tuple(feature.name for feature in features)
    roles = Roles(features=names, condition="y", id="i")
    return Schema(roles, tuple(features), ("a", "b"), False, seed), pa.RecordBatch.from_arrays(arrays, names=names)


@given(
    found=st.lists(columns(), min_size=1, max_size=3, unique_by=lambda column: column[0]),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None)
def test_a_schema_goes_through_json_and_gives_the_same_numbers(found: list, seed: int) -> None:
    schema, batch = _schema(found, seed)
    again = Schema.from_json(json.loads(json.dumps(schema.to_json(), allow_nan=False)))
    assert again.to_json() == schema.to_json()
    values = schema.encode(batch, 0)
    assert np.array_equal(values, again.encode(batch, 0))
    row_ids = np.arange(N_ROWS)
    for one, other in zip(schema.scale(values, row_ids), again.scale(values, row_ids), strict=True):
        assert np.array_equal(one, other)


@given(found=st.lists(columns(), min_size=1, max_size=1), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_scaled_values_lead_back_to_the_cells(found: list, seed: int) -> None:
    schema, batch = _schema(found, seed)
    feature = schema.features[0]
    values = feature.encode(batch.column(0), 0)
    u, log_slope = feature.scale(values, np.arange(N_ROWS), seed)
    assert np.all(np.isfinite(u))
    assert np.all(np.isfinite(log_slope))
    back = feature.map.to_value(feature.map.inverse(u))
    if feature.kind is Kind.CONTINUOUS:
        assert np.allclose(back, values, rtol=1e-6, atol=1e-9 * np.ptp(values))
    else:
        assert np.array_equal(back, values)

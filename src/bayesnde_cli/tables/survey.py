"""The contents of a table: the rows in use, the facts of every feature, and warnings about them."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bayesnde_cli import stopping
from bayesnde_cli.errors import BadInput, BadUsage
from bayesnde_cli.formatting import Advance, Report, counted
from bayesnde_cli.rng import bits_at, derive_seed
from bayesnde_cli.scaling.column_map import HIGHEST, LOWEST, Logit, Noise
from bayesnde_cli.settings.stage_settings import PrepareSettings
from bayesnde_cli.tables import columns
from bayesnde_cli.tables.columns import ColumnFacts, Kind, Roles, listed, match_columns, quoted, refuse_cells
from bayesnde_cli.tables.schema import check_truth, noise_fractions, outlier_codes
from bayesnde_cli.tables.sources import MAX_BATCH_ROWS, check_memory
from bayesnde_cli.tables.splits import MIN_ROWS

BATCH_CELLS = 64 * MAX_BATCH_ROWS  # wider tables come in smaller batches
# The square of a larger number is not finite.
LARGEST = 1e150
# The memory of a row, at least, before columns are counted: tables of ten million rows took 200.
LEAST_ROW_BYTES = 64
# Longer words are texts, and would fill every message, schema and report.
LONGEST_WORD = 10_000
# A wider table is shown by its first columns.
_MAX_SHOWN = 60
# A continuous column of which one value makes up more than this share has a spike, not a density.
SPIKE_SHARE = 0.1


@dataclass(frozen=True)
class StagedTable:
    """The columns in use of an input, stored by column so that any size is handled a column or a batch at a time.

    Columns are float64 or text, missing cells null. The rows in use, their classes and splits are added as they become
    known.
    """

    file: Path
    types: pa.Schema
    n_rows: int  # in the input
    n_missing: Mapping[str, int]
    row_ids: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # (rows,) positions in the input
    classes: tuple[str, ...] = ()  # of the condition, in order
    classes_are_whole: bool = False
    class_index: np.ndarray | None = None  # (rows,) int64, with a condition
    split: np.ndarray = field(default_factory=lambda: np.empty(0, np.int8))  # (rows,) codes of `splits`

    def is_text(self, name: str) -> bool:
        return bool(pa.types.is_string(self.types.field(name).type))

    def column(self, name: str) -> pa.ChunkedArray:
        """One column of all rows of the input."""
        return pq.read_table(self.file, columns=[name], use_threads=False, memory_map=True).column(name)

    def cells(self, name: str) -> pa.Array:
        """One column of the rows in use."""
        return self.column(name).take(pa.array(self.row_ids)).combine_chunks()

    def values(self, fact: ColumnFacts, row_ids: np.ndarray | None = None) -> np.ndarray:
        """One feature as numbers, categories by their position; of these rows only, if given. (rows,) float64"""
        cells = self.column(fact.name)
        if fact.kind is Kind.CATEGORICAL:
            cells = pc.cast(pc.index_in(cells, value_set=pa.array(fact.categories, pa.string())), pa.float64())
        return cells.to_numpy()[self.row_ids if row_ids is None else row_ids]

    def batches(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Batches of rows, each with the position of its first row."""
        first_row = 0
        n_cells = sum(getattr(item.type, "list_size", 1) for item in self.types)
        batch_rows = min(MAX_BATCH_ROWS, max(1, BATCH_CELLS // n_cells))
        with pq.ParquetFile(self.file, pre_buffer=False) as file:  # buffered ahead, it would be held whole
            for batch in file.iter_batches(batch_size=batch_rows):
                yield first_row, batch
                first_row += batch.num_rows


def stage_table(
    batches: Iterable[pa.RecordBatch], file: Path, *, features: Collection[str], report: Report
) -> StagedTable:
    """Write batches to a file. Infinities and free text in the columns `features` are refused on the way."""
    n_rows = 0
    n_missing: Counter[str] = Counter()
    words: dict[str, set[str]] = {}
    writer: pq.ParquetWriter | None = None
    try:
        with report.progress("reading", None, "rows") as advance:
            for batch in batches:
                stopping.check()
                if writer is None:
                    writer = pq.ParquetWriter(file, batch.schema, compression="lz4", write_statistics=False)
                for name, column in zip(batch.schema.names, batch.columns, strict=True):
                    n_missing[name] += column.null_count
                    if pa.types.is_string(column.type):
                        _refuse_long_word(column, name, n_rows)
                    if name in features and pa.types.is_string(column.type):
                        words.setdefault(name, set()).update(pc.unique(column.drop_null()).to_pylist())
                        columns.refuse_too_many(name, words[name])
                    elif name in features:
                        _refuse_infinity(column, name, n_rows)
                writer.write_batch(batch)
                n_rows += batch.num_rows
                hint = "prepare a part of its rows: a few million suffice for a fit, and `density` scores any number"
                check_memory("the table", n_rows * LEAST_ROW_BYTES, hint=hint)
                advance(batch.num_rows)
    finally:
        if writer is not None:
            writer.close()
    if writer is None:
        raise BadInput("the input has no rows", found="no row after the header", hint="give a table with rows")
    return StagedTable(file, writer.schema, n_rows, n_missing)


def _refuse_long_word(column: pa.Array, name: str, first_row: int) -> None:
    n_bytes = pc.binary_length(column)
    index = pc.index(pc.greater(n_bytes, LONGEST_WORD), True).as_py()
    if index >= 0:
        raise BadInput(
            f"column '{name}' holds a very long text in row {first_row + index + 1:,}",
            found=f"{n_bytes[index].as_py():,} bytes, {LONGEST_WORD:,} are the most",
            hint=f"leave the column out with --drop {quoted(name)}",
        )


def _refuse_infinity(column: pa.Array, name: str, first_row: int) -> None:
    size = np.abs(column.to_numpy(zero_copy_only=False))
    row_ids = first_row + np.arange(len(size))
    hint = f"correct or remove the row, or leave the column out with --drop {quoted(name)}"
    refuse_cells(column, size == np.inf, row_ids, f"column '{name}' holds an infinity", hint=hint)
    refuse_cells(column, size > LARGEST, row_ids, f"column '{name}' holds a number beyond {LARGEST:g}", hint=hint)


# Rows.


def select_rows(staged: StagedTable, roles: Roles, config: PrepareSettings, report: Report) -> StagedTable:
    """The table with its rows in use: complete ones within `--max-robust-z`; their labels are checked."""
    n_missing = staged.n_missing
    n_absent = np.zeros(staged.n_rows, np.int64)  # missing cells of each row
    for name in (name for name, count in n_missing.items() if count):
        n_absent += pc.is_null(staged.column(name)).to_numpy()
    # Rows without any cell, such as the `,,,` lines at the end of a spreadsheet.
    n_empty = int(np.sum(n_absent == len(n_missing))) if len(n_missing) > 1 else 0
    if n_empty:
        report.note(f"{counted(n_empty, 'row')} without any cell left out")
    keep = n_absent == 0
    lacking = {name: count - n_empty for name, count in n_missing.items() if count > n_empty}
    mostly = [name for name, count in lacking.items() if 2 * count > staged.n_rows]
    if lacking and (config.missing == "error" or (mostly and np.sum(keep) < MIN_ROWS)):
        raise BadInput(
            f"{counted(sum(lacking.values()), 'cell is', 'cells are')} missing",
            found=f"columns: {listed([f'{name} ({count:,})' for name, count in lacking.items()])}",
            hint=f"leave out the columns that are mostly missing: {_drop_options(mostly)}"
            if mostly
            else "drop these rows with --missing drop, or these columns with --drop",
        )
    n_dropped = int(np.sum(~keep)) - n_empty
    if n_dropped:
        report.note(f"{counted(n_dropped, 'row')} with missing cells dropped")
    if config.max_robust_z is not None:
        glitch = _find_glitches(staged, roles, keep, config.max_robust_z)
        report.note(f"{counted(int(np.sum(glitch)), 'row')} dropped by --max-robust-z {config.max_robust_z:g}")
        keep &= ~glitch
    staged = replace(staged, row_ids=np.flatnonzero(keep))
    if roles.id:
        _refuse_repeated_names(staged.cells(roles.id), staged.row_ids, roles.id)
    if len(staged.row_ids) < MIN_ROWS:
        raise BadInput(
            f"a density cannot be fitted to {counted(len(staged.row_ids), 'row')}",
            found=f"rows in the file: {staged.n_rows:,}, smallest number: {MIN_ROWS}",
            hint="give more rows",
        )
    if roles.outlier_label:
        outlier_codes(staged.cells(roles.outlier_label), roles.outlier_label, staged.row_ids)
    if roles.truth:
        check_truth(staged.cells(roles.truth), roles.truth)
    return staged


def _find_glitches(staged: StagedTable, roles: Roles, keep: np.ndarray, bound: float) -> np.ndarray:
    """Rows with |x - median| / MAD above the bound in a numeric feature, (rows of the input,) bool."""
    glitch = np.zeros(staged.n_rows, bool)
    for name in roles.features if keep.any() else ():
        if staged.is_text(name):
            continue
        values = staged.column(name).to_numpy()
        distance = np.abs(values - np.median(values[keep]))
        spread = np.median(distance[keep])
        if spread > 0:  # a column that is mostly one value has no robust scale
            glitch |= keep & (distance / spread > bound)
    return glitch


def _refuse_repeated_names(names: pa.Array, row_ids: np.ndarray, column: str) -> None:
    codes = names.dictionary_encode().indices.to_numpy()  # in the order of their first rows
    first = np.unique(codes, return_index=True)[1]
    if len(first) < len(codes):
        again = int(np.argmax(first[codes] != np.arange(len(codes))))
        raise BadInput(
            f"--id {column}: two rows have the same name",
            found=f"rows {row_ids[first[codes[again]]] + 1:,} and {row_ids[again] + 1:,}: {names[again].as_py()!r}",
            hint=f"row names must be unique; leave the column out with --drop {column}",
        )


def _drop_options(names: Sequence[str]) -> str:
    return " ".join(f"--drop {quoted(name)}" for name in names)


# Features.


def survey_features(
    staged: StagedTable, roles: Roles, config: PrepareSettings, report: Report
) -> tuple[dict[str, ColumnFacts], np.ndarray]:
    """The facts of every feature, shown to the user, and for every row the position of its first copy, (rows,).

    A constant feature is refused, or left out with `--drop-constant`.
    """
    names = roles.features
    asked = columns.parse_types(config.type, names)
    facts: dict[str, ColumnFacts] = {}
    with report.progress("finding types", len(names), "columns") as advance:
        for name in names:
            stopping.check()
            cells = staged.cells(name)
            if staged.is_text(name):
                facts[name] = columns.text_facts(name, pc.unique(cells).to_pylist(), len(cells), asked.get(name))
            else:
                facts[name] = columns.numeric_facts(name, cells.to_numpy(), asked.get(name))
            advance(1)
    constant = [name for name, fact in facts.items() if fact.n_distinct <= 1]
    if constant and not config.drop_constant:
        raise BadInput(
            f"{counted(len(constant), 'column holds', 'columns hold')} one value only",
            found=f"constant: {listed(constant)}",
            hint="a constant has no density: leave such columns out with --drop-constant",
        )
    facts = {name: fact for name, fact in facts.items() if fact.n_distinct > 1}
    if not facts:
        raise BadInput("every column is constant", found=f"columns: {listed(names)}", hint="give a table that varies")
    noise = (_logit_noise if config.scale == "logit" else _parse_noise)(config.dequantize, facts)
    facts = {name: replace(fact, noise=noise.get(name)) for name, fact in facts.items()}
    _show_features(roles, facts, report)
    with report.progress("looking for copies", len(facts), "columns") as advance:
        copies = first_copies(_read_features(staged, facts, advance), len(staged.row_ids))
    n_copies = int(np.sum(copies != np.arange(len(copies))))
    is_continuous = any(fact.noise is None for fact in facts.values())
    if n_copies and is_continuous:
        report.warn(
            f"{counted(n_copies, 'row repeats', 'rows repeat')} an earlier row exactly; where rows repeat, a "
            "continuous density is not defined"
        )
    _warn_about_features(staged, facts, config.seed, report)
    # Rows of lattice columns alone repeat by themselves.
    return facts, copies if is_continuous else np.arange(len(copies))


def _parse_noise(rules: Sequence[str], facts: Mapping[str, ColumnFacts]) -> dict[str, Noise]:
    """The dequantisation noise of each lattice and categorical column; a later rule overrides an earlier one."""
    discrete = [name for name, fact in facts.items() if fact.kind is not Kind.CONTINUOUS]
    noise: dict[str, Noise] = dict.fromkeys(discrete, Noise())
    for rule in rules:
        if rule in ("auto", "none"):
            noise = dict.fromkeys(discrete if rule == "auto" else (), Noise())
            continue
        pattern, _, bounds = rule.rpartition("=")
        try:
            low, high = (float(part) for part in bounds.split(","))
            if not pattern or not (np.isfinite(low) and np.isfinite(high) and low < high):
                raise ValueError
        except ValueError:
            raise BadUsage(
                f"--dequantize {rule} is not a rule",
                found="rules: auto, none, COL=LOW,HIGH with LOW < HIGH",
                hint="for instance --dequantize age=-0.5,0.5",
            ) from None
        if pattern in facts and pattern not in discrete:
            raise BadUsage(
                f"--dequantize {rule}: column '{pattern}' is continuous",
                found=f"lattice or categorical: {', '.join(discrete) or 'no column'}",
                hint=f"leave the rule out, or add --type {pattern}=lattice",
            )
        names = match_columns([pattern], list(facts), option="--dequantize", what="feature")
        noise |= {name: Noise(low, high) for name in names if name in discrete}
    return noise


def _logit_noise(rules: Sequence[str], facts: Mapping[str, ColumnFacts]) -> dict[str, Noise]:
    """The noise of columns under `--scale logit`; all must hold whole numbers from 0 to 255."""
    if any(rule != "auto" for rule in rules):
        raise BadUsage(
            "--scale logit has a noise of its own, U(0, 1)",
            found=f"rules: {', '.join(f'--dequantize {rule}' for rule in rules)}",
            hint="leave --dequantize out, or choose another --scale",
        )
    odd = [
        f"{fact.name} ({fact.kind}{'' if fact.categories else f', {fact.minimum:g} to {fact.maximum:g}'})"
        for fact in facts.values()
        if fact.kind is not Kind.LATTICE or fact.minimum < LOWEST or fact.maximum > HIGHEST
    ]
    if odd:
        raise BadInput(
            "--scale logit takes whole numbers from 0 to 255 only",
            found=f"columns: {listed(odd)}",
            hint="choose another --scale, or leave such columns out with --drop",
        )
    return dict.fromkeys(facts, Logit().noise)


def _show_features(roles: Roles, facts: Mapping[str, ColumnFacts], report: Report) -> None:
    """The table of columns that the user sees before anything is written."""
    lines = []
    shown = roles.used if len(roles.used) <= _MAX_SHOWN else roles.used[: _MAX_SHOWN // 2]
    for name in shown:
        fact = facts.get(name)
        if fact is None:
            lines.append([name, "left out" if name in roles.features else roles.of(name), *[""] * 5])
            continue
        low, high = f"{fact.minimum:.6g}", f"{fact.maximum:.6g}"
        if fact.categories:
            low, high = fact.categories[0], fact.categories[-1]
        noise = f"U({fact.noise.low:g}, {fact.noise.high:g})" if fact.noise else ""
        lines.append([name, roles.of(name), str(fact.kind), f"{fact.n_distinct:,}", low, high, noise])
    report.table("columns", ["name", "role", "type", "distinct", "min", "max", "noise"], lines)
    if len(shown) < len(roles.used):
        report.note(f"… and {len(roles.used) - len(shown):,} more columns")
    if roles.ignored:
        report.note(f"not used: {listed(roles.ignored)}")
    n_noisy = sum(fact.noise is not None for fact in facts.values())
    if n_noisy:
        report.note(
            f"{counted(n_noisy, 'lattice or categorical column')} dequantised with uniform noise, "
            "addressed by row: their log-densities are those of value plus noise"
        )


def _warn_about_features(staged: StagedTable, facts: Mapping[str, ColumnFacts], seed: int, report: Report) -> None:
    """Warn of properties that make a continuous density undefined or misleading."""
    n_rows = len(staged.row_ids)
    for name, fact in facts.items():
        if fact.kind is Kind.LATTICE and fact.n_distinct == n_rows == fact.maximum - fact.minimum + 1:
            report.warn(f"column '{name}' numbers the rows; declare it with --id {quoted(name)} or use --drop")
        if fact.kind is Kind.CONTINUOUS and fact.top_share > SPIKE_SHARE:
            share = min(round(100 * fact.top_share), 99)  # all would be a constant column
            report.warn(
                f"{share}% of the rows have {name} = {fact.top_value:g}: a continuous density is not defined there, "
                "and the log-densities of these rows depend on how sharp a spike the scaling allows"
            )
        if fact.kind is Kind.CONTINUOUS and columns.LARGEST_EXACT_INTEGER < max(-fact.minimum, fact.maximum) < 2.0**64:
            report.warn(
                f"column '{name}' goes beyond 2**53, where whole numbers are rounded; "
                f"declare a code with --id {quoted(name)}, or leave it out with --drop {quoted(name)}"
            )
    bare = [name for name, fact in facts.items() if fact.kind is not Kind.CONTINUOUS and fact.noise is None]
    if bare:
        report.warn(f"without noise these columns have no density, only spikes: {listed(bare)}; see --dequantize")
    relations = linear_relations(_draw_noisy_rows(staged, facts, seed), list(facts))
    for relation in relations:
        report.warn(
            f"column '{relation.column}' is (nearly) a linear function of {listed(relation.others, 4)}, "
            f"which leave {relation.left:.1g} of its variance"
        )
    if relations:
        options = _drop_options([relation.column for relation in relations])
        report.warn(f"a continuous density is then not defined, and log-densities grow without bound; use {options}")


def _read_features(staged: StagedTable, facts: Mapping[str, ColumnFacts], advance: Advance) -> Iterator[np.ndarray]:
    """The features one at a time, (rows,) each."""
    for fact in facts.values():
        stopping.check()
        yield staged.values(fact)
        advance(1)


def _draw_noisy_rows(staged: StagedTable, facts: Mapping[str, ColumnFacts], seed: int) -> np.ndarray:
    """A random sample of rows with their noise, (rows, p): noise can make a dependent column harmless."""
    # Drawn by address: the first rows of a sorted file say little about the rest.
    order = np.argsort(bits_at(derive_seed(seed, "prepare", "linear"), staged.row_ids), kind="stable")
    sample = np.sort(staged.row_ids[order[:LINEAR_CHECK_ROWS]])
    values = [staged.values(fact, sample) for fact in facts.values()]
    pairs = zip(facts.values(), values, strict=True)
    noisy = [fact.noise.add(x, noise_fractions(fact.name, sample, seed)) if fact.noise else x for fact, x in pairs]
    return np.stack(noisy, axis=1)


# Duplicates and linear dependence.

# A column is (nearly) a linear function of others when they leave less than this share of its variance.
# Recording 3 * x to five digits leaves about 1e-6; the closest honest pairs met in real tables leave 1e-3 and more.
NEARLY_LINEAR = 1e-4
# Rows of the linear check: enough to see a relation, few enough to be quick.
LINEAR_CHECK_ROWS = 20_000
# Of the terms of a linear relation, those below this share of the largest are noise.
_NAMED_TERM = 0.05


def first_copies(values: Iterable[np.ndarray], n_rows: int) -> np.ndarray:
    """The position of the first row that is the same, its own if there is none; columns are read one at a time. (rows,)

    Rows are compared by a 64-bit hash: with ten million rows the chance of a false match is 3e-6.
    """
    row_hash = np.zeros(n_rows, np.uint64)
    for position, column in enumerate(values):
        bits = (column + 0.0).view(np.uint64)  # adding zero makes -0.0 and 0.0 one value
        row_hash = bits_at(position, row_hash ^ bits_at(0, bits))
    _, first, inverse = np.unique(row_hash, return_index=True, return_inverse=True)
    return first[inverse]


class LinearRelation(NamedTuple):
    """A column that the columns before it determine, up to `left` of its variance."""

    column: str
    others: tuple[str, ...]
    left: float


def linear_relations(values: np.ndarray, names: Sequence[str]) -> list[LinearRelation]:
    """The columns of `values` (rows, p) that are nearly linear functions of columns before them.

    Gauss-Jordan elimination of the correlation matrix S in the file's order. After the pivots `basis`, S[j, j] is the
    variance that they leave of column j, and S[basis, j] are its regression coefficients.
    """
    n_rows = len(values)
    values = values / np.maximum(np.max(np.abs(values), axis=0), np.finfo(float).tiny)  # squares stay finite
    centred = values - values.mean(axis=0)
    spread = np.sqrt(np.mean(centred**2, axis=0))
    varying = [name for name, sd in zip(names, spread, strict=True) if sd > 0]
    centred = centred[:, spread > 0] / spread[spread > 0]
    s = centred.T @ centred / n_rows

    relations: list[LinearRelation] = []
    basis: list[int] = []
    for position, name in enumerate(varying):
        if len(basis) >= n_rows // 2:  # with few rows any column looks like a combination of the others
            break
        left = float(s[position, position])
        if left < NEARLY_LINEAR:
            weights = np.abs(s[basis, position])
            others = [
                varying[i] for i, weight in zip(basis, weights, strict=True) if weight > _NAMED_TERM * weights.max()
            ]
            relations.append(LinearRelation(name, tuple(others), max(left, 0.0)))
        else:
            pivot_row = s[position] / left
            s -= np.outer(s[:, position], pivot_row)
            s[position] = pivot_row
            basis.append(position)
    return relations

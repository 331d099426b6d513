"""What is in the table: which rows are kept, what each feature holds, and what the user should know about it."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bayesnde_cli.config import PrepareConfig
from bayesnde_cli.data.checks import LINEAR_CHECK_ROWS, count_duplicates, linear_relations
from bayesnde_cli.data.kinds import LARGEST_EXACT_INTEGER, ColumnFacts, Kind, asked_kinds, numeric_facts, text_facts
from bayesnde_cli.data.labels import outlier_codes, truth
from bayesnde_cli.data.roles import Roles, listed, quoted
from bayesnde_cli.data.scaling import Noise
from bayesnde_cli.data.schema import noise_fractions
from bayesnde_cli.data.splits import MIN_ROWS
from bayesnde_cli.errors import BadInput
from bayesnde_cli.rng import bits_at, derive_seed
from bayesnde_cli.stages.prepare.staging import StagedTable
from bayesnde_cli.stages.reporting import Advance, Report, counted

# A wider table than this is shown by its first columns.
_MAX_SHOWN = 60
# A continuous column of which one value makes up more than this has a spike, not a density.
_SPIKE_SHARE = 0.1


def kept_rows(staged: StagedTable, roles: Roles, config: PrepareConfig, report: Report) -> np.ndarray:
    """The positions of the rows to use, (rows,) int64: complete, and not glitches if the user set a bound."""
    is_empty = staged.empty_rows()
    n_empty = int(np.sum(is_empty))
    if n_empty:
        report.note(f"{counted(n_empty, 'row')} without any cell left out")
    lacking = {name: count - n_empty for name, count in staged.n_missing.items() if count > n_empty}
    mostly = [name for name, count in lacking.items() if 2 * count > staged.n_rows]
    keep = staged.complete_rows()
    if lacking and (config.missing == "error" or (mostly and np.sum(keep) < MIN_ROWS)):
        raise BadInput(
            f"{counted(sum(lacking.values()), 'cell is', 'cells are')} missing",
            found=f"columns: {listed([f'{name} ({count:,})' for name, count in lacking.items()])}",
            hint=f"leave out the columns that are mostly missing: {_drops(mostly)}"
            if mostly
            else "drop these rows with --missing drop, or these columns with --drop",
        )
    n_dropped = int(np.sum(~keep)) - n_empty
    if n_dropped:
        report.note(f"{counted(n_dropped, 'row')} with missing cells dropped")
    if config.max_robust_z is not None:
        glitch = _glitches(staged, roles, keep, config.max_robust_z)
        report.note(f"{counted(int(np.sum(glitch)), 'row')} dropped by --max-robust-z {config.max_robust_z:g}")
        keep &= ~glitch
    row_ids = np.flatnonzero(keep)
    if roles.id:
        _refuse_repeated_names(staged.column(roles.id).take(pa.array(row_ids)), row_ids, roles.id)
    if len(row_ids) < MIN_ROWS:
        raise BadInput(
            f"a density cannot be fitted to {counted(len(row_ids), 'row')}",
            found=f"rows in the file: {staged.n_rows:,}, smallest number: {MIN_ROWS}",
            hint="give more rows",
        )
    return row_ids


def check_labels(staged: StagedTable, roles: Roles, row_ids: np.ndarray) -> None:
    """Refuse an outlier label that is not 0 or 1, and a truth that is no number, before the long work begins."""
    if roles.outlier_label:
        column = staged.column(roles.outlier_label).take(pa.array(row_ids)).combine_chunks()
        outlier_codes(column, roles.outlier_label, row_ids)
    if roles.truth:
        truth(staged.column(roles.truth).combine_chunks(), roles.truth)


def feature_values(staged: StagedTable, fact: ColumnFacts, row_ids: np.ndarray) -> np.ndarray:
    """One feature of the rows in use as numbers, categories by their position. (rows,) float64."""
    if fact.kind is not Kind.CATEGORICAL:
        return staged.numbers(fact.name)[row_ids]
    codes = pc.index_in(staged.column(fact.name), value_set=pa.array(fact.categories, pa.string()))
    return pc.cast(codes, pa.float64()).to_numpy()[row_ids]


def survey_features(
    staged: StagedTable, roles: Roles, row_ids: np.ndarray, config: PrepareConfig, report: Report
) -> dict[str, ColumnFacts]:
    """The facts of every feature; a constant one is refused, or left out if the user said so."""
    asked = asked_kinds(config.type, roles.features)
    facts: dict[str, ColumnFacts] = {}
    with report.progress("finding types", len(roles.features), "columns") as advance:
        for name in roles.features:
            if staged.is_text(name):
                words = pc.unique(staged.column(name).take(pa.array(row_ids))).to_pylist()
                facts[name] = text_facts(name, words, len(row_ids), asked.get(name))
            else:
                facts[name] = numeric_facts(name, staged.numbers(name)[row_ids], asked.get(name))
            advance(1)
    constant = [name for name, fact in facts.items() if fact.is_constant]
    if constant and not config.drop_constant:
        raise BadInput(
            f"{counted(len(constant), 'column holds', 'columns hold')} one value only",
            found=f"constant: {listed(constant)}",
            hint="a constant has no density: leave such columns out with --drop-constant",
        )
    for name in constant:
        del facts[name]
    if not facts:
        raise BadInput(
            "every column is constant", found=f"columns: {listed(roles.features)}", hint="give a table that varies"
        )
    return facts


def show_features(
    staged: StagedTable, roles: Roles, facts: Mapping[str, ColumnFacts], noise: Mapping[str, Noise], report: Report
) -> None:
    """The table of columns that the user sees before anything is written."""
    rows = []
    shown = roles.used if len(roles.used) <= _MAX_SHOWN else roles.used[: _MAX_SHOWN // 2]
    for name in shown:
        fact = facts.get(name)
        if fact is None:
            rows.append([name, "left out" if name in roles.features else roles.of(name), "", "", "", "", ""])
            continue
        if fact.kind is Kind.CATEGORICAL:
            low, high = fact.categories[0], fact.categories[-1]
        else:
            low, high = f"{fact.minimum:.6g}", f"{fact.maximum:.6g}"
        added = noise.get(name)
        noise_text = f"U({added.low:g}, {added.high:g})" if added else ""
        rows.append([name, roles.of(name), str(fact.kind), f"{fact.n_distinct:,}", low, high, noise_text])
    report.table("columns", ["name", "role", "type", "distinct", "min", "max", "noise"], rows)
    if len(shown) < len(roles.used):
        report.note(f"… and {len(roles.used) - len(shown):,} more columns")
    if roles.ignored:
        report.note(f"not used: {listed(roles.ignored)}")
    if noise:
        report.note(
            f"{counted(len(noise), 'lattice or categorical column')} dequantised with uniform noise, "
            "addressed by row: their log-densities are those of value plus noise"
        )


def warn_about_features(
    staged: StagedTable, facts: Mapping[str, ColumnFacts], noise: Mapping[str, Noise], row_ids: np.ndarray,
    *, seed: int, report: Report,
) -> None:  # fmt: skip
    """Warn of what makes a continuous density undefined or misleading."""
    n_rows = len(row_ids)
    with report.progress("looking for duplicates", len(facts), "columns") as advance:
        n_duplicates = count_duplicates(_columns(staged, facts, row_ids, advance), n_rows)
    if n_duplicates and len(noise) < len(facts):
        report.warn(
            f"{counted(n_duplicates, 'row repeats', 'rows repeat')} an earlier row exactly; where rows repeat, a "
            "continuous density is not defined, and a test row may have been seen in training"
        )
    for name, fact in facts.items():
        if fact.kind is Kind.LATTICE and fact.n_distinct == n_rows == fact.maximum - fact.minimum + 1:
            report.warn(f"column '{name}' numbers the rows; keep it aside with --id {quoted(name)} or use --drop")
    for name, fact in facts.items():
        if fact.kind is Kind.CONTINUOUS and fact.top_share > _SPIKE_SHARE:
            share = min(round(100 * fact.top_share), 99)  # all would be a constant column
            report.warn(
                f"{share}% of the rows have {name} = {fact.top_value:g}: a continuous density is not defined there, "
                "and the log-densities of these rows depend on how sharp a spike the scaling allows"
            )
        if fact.kind is Kind.CONTINUOUS and LARGEST_EXACT_INTEGER < max(-fact.minimum, fact.maximum) < 2.0**64:
            report.warn(
                f"column '{name}' goes beyond 2**53, where whole numbers are rounded; "
                f"keep a code aside with --id {quoted(name)}, or leave it out with --drop {quoted(name)}"
            )
    bare = [name for name, fact in facts.items() if fact.kind is not Kind.CONTINUOUS and name not in noise]
    if bare:
        report.warn(f"without noise these columns have no density, only spikes: {listed(bare)}; see --dequantize")
    relations = linear_relations(_noisy_sample(staged, facts, noise, row_ids, seed), list(facts))
    for relation in relations:
        report.warn(
            f"column '{relation.column}' is (nearly) a linear function of {listed(relation.others, 4)}, "
            f"which leave {relation.left:.1g} of its variance"
        )
    if relations:
        flags = _drops([relation.column for relation in relations])
        report.warn(f"a continuous density is then not defined, and log-densities grow without bound; use {flags}")


def _drops(names: Sequence[str]) -> str:
    """The options that leave columns out, as they are typed in a shell."""
    return " ".join(f"--drop {quoted(name)}" for name in names)


def _columns(
    staged: StagedTable, facts: Mapping[str, ColumnFacts], row_ids: np.ndarray, advance: Advance
) -> Iterator[np.ndarray]:
    """The features one at a time, (rows,) each."""
    for fact in facts.values():
        yield feature_values(staged, fact, row_ids)
        advance(1)


def _noisy_sample(
    staged: StagedTable, facts: Mapping[str, ColumnFacts], noise: Mapping[str, Noise], row_ids: np.ndarray, seed: int
) -> np.ndarray:
    """Some rows as the density sees them, (rows, p): noise can make a dependent column harmless."""
    # Drawn by address: the first rows of a sorted file say little about the rest.
    order = np.argsort(bits_at(derive_seed(seed, "prepare", "linear"), row_ids), kind="stable")
    sample = np.sort(row_ids[order[:LINEAR_CHECK_ROWS]])
    columns = []
    for name, fact in facts.items():
        values = feature_values(staged, fact, sample)
        fraction = noise_fractions(name, sample, seed)
        columns.append(noise[name].add(values, fraction) if name in noise else values)
    return np.stack(columns, axis=1)


def _refuse_repeated_names(names: pa.ChunkedArray, row_ids: np.ndarray, column: str) -> None:
    if pc.count_distinct(names).as_py() == len(names):
        return
    first_seen: dict[str, int] = {}
    for row_id, name in zip(row_ids.tolist(), names.to_pylist(), strict=True):
        if name in first_seen:
            raise BadInput(
                f"--id {column}: two rows have the same name",
                found=f"rows {first_seen[name] + 1:,} and {row_id + 1:,}: {name!r}",
                hint=f"a row's name must be its own; leave the column out with --drop {column}",
            )
        first_seen[name] = row_id


def _glitches(staged: StagedTable, roles: Roles, keep: np.ndarray, bound: float) -> np.ndarray:
    """Rows with |x - median| / MAD above the bound in a numeric feature, (rows,) bool."""
    glitch = np.zeros(staged.n_rows, bool)
    for name in roles.features:
        if staged.is_text(name):
            continue
        values = staged.numbers(name)
        if not keep.any():
            return glitch
        median = np.median(values[keep])
        distance = np.abs(values - median)
        spread = np.median(distance[keep])
        if spread > 0:  # a column that is mostly one value has no robust scale
            glitch |= keep & (distance / spread > bound)
    return glitch

"""Several files as one table: rows below rows, and labels beside the array that they belong to."""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from bayesnde_cli.data.readers.array_table import ArrayTable, beside
from bayesnde_cli.data.readers.table import LABEL, Kind, Table, listed
from bayesnde_cli.errors import BadInput


class Concatenation(Table):
    """The rows of several tables in the given order, under the names of the first."""

    def __init__(self, parts: Sequence[tuple[str, Table]]) -> None:
        (first_name, first), *others = parts
        for name, table in others:
            _require_same_images(first_name, first, name, table)
            _require_same_columns(first_name, first, name, table)
        self._tables = [table for _, table in parts]
        self.names = first.names
        self.has_own_names = first.has_own_names
        self.image = first.image
        descriptions = dict.fromkeys(table.description for table in self._tables)
        self.description = f"{len(parts)} files: {'; '.join(descriptions)}"

    def kinds(self, columns: Sequence[str]) -> dict[str, Kind | None]:
        """What each column holds in the first file in which it holds anything."""
        kinds: dict[str, Kind | None] = dict.fromkeys(columns)
        for table in self._tables:
            unknown = [name for name in columns if kinds[name] is None]
            if unknown:
                own = self._own_names(table)
                found = table.kinds([own[name] for name in unknown])
                kinds |= {name: found[own[name]] for name in unknown}
        return kinds

    def batches_as(self, kinds: Mapping[str, Kind]) -> Iterator[pa.RecordBatch]:
        """The batches of one table after the other, under the names of the first."""
        for table in self._tables:
            own = self._own_names(table)
            for batch in table.batches_as({own[name]: kind for name, kind in kinds.items()}):
                yield batch.rename_columns(list(kinds))

    def _own_names(self, table: Table) -> dict[str, str]:
        """The table's own name of each column of the whole."""
        own = table.names if not table.has_own_names else self.names
        return dict(zip(self.names, own, strict=True))


def together(parts: Sequence[tuple[str, Table]]) -> Table:
    """One table of the named tables: labels joined to their arrays, then rows below rows."""
    joined: list[tuple[str, Table]] = []
    for name, table in parts:
        left_name, left = joined[-1] if joined else ("", None)
        if isinstance(left, ArrayTable) and isinstance(table, ArrayTable) and _is_label_of(table, left):
            joined[-1] = (left_name, beside(left, table, LABEL))
        else:
            joined.append((name, table))
    return joined[0][1] if len(joined) == 1 else Concatenation(joined)


def _is_label_of(table: ArrayTable, before: ArrayTable) -> bool:
    """Whether the table is a bare vector, as long as the bare array before it."""
    is_bare_array = not before.has_own_names and not before.is_vector and LABEL not in before.names
    return table.is_vector and is_bare_array and table.n_rows == before.n_rows


def _require_same_images(first_name: str, first: Table, name: str, table: Table) -> None:
    if table.image != first.image:
        raise BadInput(
            f"{name} and {first_name} do not hold images of the same size",
            found=[f"{place}: {_images(part)}" for place, part in ((first_name, first), (name, table))],
            hint="give images of one size, or prepare them apart",
        )


def _images(table: Table) -> str:
    return f"images of {table.image}" if table.image else f"no images ({table.description})"


def _require_same_columns(first_name: str, first: Table, name: str, table: Table) -> None:
    if first.has_own_names and table.has_own_names:
        missing = [column for column in first.names if column not in table.names]
        extra = [column for column in table.names if column not in first.names]
        if missing or extra:
            found = [f"missing: {listed(missing)}"] if missing else []
            found += [f"extra: {listed(extra)}"] if extra else []
            raise BadInput(
                f"{name} has other columns than {first_name}",
                found=found,
                hint="give files with the same columns, in any order",
            )
    elif table.has_own_names:
        raise BadInput(
            f"{name} names its columns and {first_name} does not",
            found=f"names: {listed(table.names)}",
            hint="give the file with the names first, or use `--header yes` or `--header no` for all files",
        )
    elif len(table.names) != len(first.names):
        raise BadInput(
            f"{name} has {len(table.names)} columns and {first_name} has {len(first.names)}",
            found="files without column names are matched by position",
            hint="give files with the same number of columns",
        )

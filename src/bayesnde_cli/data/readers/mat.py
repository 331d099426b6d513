"""MATLAB v5 files (up to v7): numeric variables, held in memory because scipy reads them whole."""

import numpy as np

from bayesnde_cli.data.readers.array_table import NUMBER_KINDS, ArrayTable, HeldArray
from bayesnde_cli.data.readers.bundle import bundle
from bayesnde_cli.data.readers.source import Source


def open_mat(source: Source) -> ArrayTable:
    """The table of a MAT file: its largest matrix as c1, c2, ..., vectors of equal length by their names."""
    import scipy.io  # slow to import, and of no use to the other formats

    arrays: dict[str, HeldArray] = {}
    ignored: dict[str, str] = {}
    try:
        classes = {name: matlab_class for name, _, matlab_class in scipy.io.whosmat(source.path)}
        values = scipy.io.loadmat(source.path)
    except Exception as error:  # scipy lets every sort of error out of a broken file
        raise source.damaged("MAT file", error) from error
    for name, matlab_class in classes.items():
        value = values.get(name)
        if isinstance(value, np.ndarray) and value.dtype.kind in NUMBER_KINDS:
            arrays[name] = HeldArray(value)
        else:
            is_complex = isinstance(value, np.ndarray) and value.dtype.kind == "c"
            ignored[name] = "complex" if is_complex else matlab_class
    return bundle(source, "MAT v5", arrays, ignored)

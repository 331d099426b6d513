"""exp(x) for x <= 0 from correctly rounded operations only, so that every processor gives the same bits.

`numpy.exp` differs in the last bit between processors, and a hundred EM steps make 1e-13 of it. Rounding the
parameters to nine digits hides that, except where a parameter lies on the edge of a digit: about one in a million.
Addition and multiplication do not differ at all. With a table at steps of 1/256,

    x = k/256 + r,  |r| <= 1/512,     exp(x) = exp(k/256) * (1 + r + r^2/2),

whose relative error of 1.3e-9 a fit does not notice.
"""

from decimal import Context, Decimal

import numpy as np

from bayesnde_cli.data.scaling.column_map import Array

_STEPS_PER_UNIT = 256
# exp of less counts as exp(-40) = 4e-18: nothing, next to the Student-t density that stands in every sum.
_LOWEST = -40


def _table() -> Array:
    """exp(-j/256) for j = 0..40*256, as products of decimal exponentials, which are the same everywhere."""
    j = np.arange(-_LOWEST * _STEPS_PER_UNIT + 1)
    table = np.ones(len(j))
    bit = 1
    while bit < len(j):
        factor = float((Decimal(-bit) / _STEPS_PER_UNIT).exp(Context(prec=25)))
        table[(j & bit) > 0] *= factor
        bit *= 2
    return table


_TABLE = _table()


def portable_exp(x: Array) -> Array:
    """exp(max(x, -40)) for x <= 0, to a relative error of 1.3e-9, the same bits everywhere. Shape of `x`."""
    x = np.maximum(x, _LOWEST)
    steps = x * -_STEPS_PER_UNIT
    np.rint(steps, out=steps)
    index = steps.astype(np.intp)
    steps *= 1.0 / _STEPS_PER_UNIT
    x += steps  # r
    np.multiply(x, 0.5, out=steps)
    steps += 1.0
    steps *= x
    steps += 1.0
    steps *= _TABLE.take(index, mode="clip")
    return steps

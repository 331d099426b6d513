"""Seeds are addresses, never counters: the same place always gets the same numbers.

`derive_seed(root, "posterior", 12)` depends on nothing but its arguments, so skipping finished work,
sharding it, or doing it in another order changes nothing.
"""

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

# Constants of SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators").
_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def derive_seed(root: int, *address: str | int) -> int:
    """The 64-bit seed at an address below the root seed."""
    # repr keeps 1 and "1" apart; the unit separator keeps ("ab", "c") and ("a", "bc") apart.
    text = "\x1f".join([repr(int(root)), *(repr(part) for part in address)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def generator(root: int, *address: str | int) -> "np.random.Generator":
    """A NumPy generator that belongs to an address."""
    import numpy as np

    return np.random.Generator(np.random.Philox(key=derive_seed(root, *address)))


def bits_at(seed: int, index: "np.ndarray") -> "np.ndarray":
    """64 random bits for each index: element `i` depends on `(seed, i)` alone. Shape of `index`, uint64.

    Integer arithmetic only, so equal on every machine.
    """
    import numpy as np

    with np.errstate(over="ignore"):
        z = np.uint64(seed) + (index.astype(np.uint64) + np.uint64(1)) * np.uint64(_GAMMA)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(_MIX_1)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(_MIX_2)
        return z ^ (z >> np.uint64(31))


def uniform_at(seed: int, index: "np.ndarray") -> "np.ndarray":
    """A uniform number in the open interval (0, 1) for each index. Shape of `index`, float64."""
    import numpy as np

    # 52 bits plus a half: never 0, never 1, exact in float64.
    return ((bits_at(seed, index) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52

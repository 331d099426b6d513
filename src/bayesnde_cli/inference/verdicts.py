"""The verdicts on a row, in words, and what leads to them."""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from bayesnde_cli.inference.bridge import Bridge

RELIABLE = "reliable"
ERROR_ABOVE_TARGET = "error above target"
CHAINS_DISAGREE = "chains disagree"
MODES_MAY_BE_MISSING = "modes may be missing"
ESTIMATES_DISAGREE = "estimates disagree"
BRIDGE_DID_NOT_CONVERGE = "bridge did not converge"
NOT_FINITE = "not finite"
# Of a row without any cell: its density is the integral of the prior, exactly 1.
NO_CELLS = "no cells"

VERDICTS = (
    RELIABLE,
    ERROR_ABOVE_TARGET,
    CHAINS_DISAGREE,
    MODES_MAY_BE_MISSING,
    ESTIMATES_DISAGREE,
    BRIDGE_DID_NOT_CONVERGE,
    NOT_FINITE,
    NO_CELLS,
)

# Chains that agree and mix; and where importance sampling alone is exact, so that they are but witnesses of it.
MOST_RHAT, LEAST_ESS = 1.05, 40.0
MOST_RHAT_OF_WITNESSES, LEAST_ESS_OF_WITNESSES = 1.2, 20.0
_MOST_SE_OF_EXACT = 0.05  # or the target, where it is smaller
# Modes that are known.
MOST_MISSED_MASS = 0.05
# Of the posterior, what chains may not have seen that the proposal has; and no more than happens once in a thousand.
MOST_UNSEEN, _CHANCE = 0.05, 1e-3
# The error of importance sampling, by the chains, beyond which they were where the proposal as good as never goes.
_MOST_SE_BY_CHAINS = 1.0
# Standard errors that two estimates may be apart, beside the target.
_MOST_DISAGREEMENT = 5.0


def verdicts(found: "Bridge", own: dict[str, np.ndarray], target_se: float) -> np.ndarray:
    """In words, the first thing that is wrong with each row."""
    gap = np.abs(found.log_z - found.log_z_is)
    is_apart = gap > _MOST_DISAGREEMENT * np.hypot(found.se, found.se_is) + target_se
    # Half of the draws are held out; so many independent ones would all have missed that much by chance alone.
    by_chance = -np.expm1(np.log(_CHANCE) / (0.5 * np.maximum(own["ess_min"], LEAST_ESS)))
    is_unseen = found.unseen > np.maximum(MOST_UNSEEN, by_chance)
    is_unseen |= found.se_is_by_chains > _MOST_SE_BY_CHAINS
    # By its own draws and by those of the chains; and modes were looked for.
    is_exact = found.larger_se_is <= min(target_se, _MOST_SE_OF_EXACT)
    is_exact &= np.isfinite(own["missed_mass"])
    most_rhat = np.where(is_exact, MOST_RHAT_OF_WITNESSES, MOST_RHAT)
    least_ess = np.where(is_exact, LEAST_ESS_OF_WITNESSES, LEAST_ESS)
    wrongs = [
        (~(np.isfinite(found.log_z) & np.isfinite(found.se)), NOT_FINITE),
        (~found.is_converged, BRIDGE_DID_NOT_CONVERGE),
        ((own["rhat_max"] > most_rhat) | (own["ess_min"] < least_ess) | is_unseen, CHAINS_DISAGREE),
        (own["missed_mass"] > MOST_MISSED_MASS, MODES_MAY_BE_MISSING),
        (is_apart, ESTIMATES_DISAGREE),
        (found.se > target_se, ERROR_ABOVE_TARGET),
    ]
    return np.select([wrong for wrong, _ in wrongs], [name for _, name in wrongs], RELIABLE).astype(object)

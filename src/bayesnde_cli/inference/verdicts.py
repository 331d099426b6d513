"""The verdicts on a row, in words."""

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

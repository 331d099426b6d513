"""What is said of a row whose figures are these."""

import numpy as np

from bayesnde_cli.inference.bridge import Bridge
from bayesnde_cli.inference.verdicts import verdicts


def test_estimates_that_disagree_are_not_called_sound() -> None:
    one = np.ones(1)
    own = {"rhat_max": one, "ess_min": 1000 * one, "missed_mass": 0 * one}
    found = Bridge(log_z=0 * one, se=0.06 * one, log_z_is=3 * one, se_is=0.1 * one, se_is_by_chains=0.1 * one,
                   unseen=0 * one, overlap=one, n_iterations=one.astype(np.int32), is_converged=one > 0)  # fmt: skip
    assert verdicts(found, own, 0.05)[0] == "estimates disagree"
    assert verdicts(found._replace(log_z_is=0.01 * one), own, 0.05)[0] == "error above target"
    sound = found._replace(log_z_is=0.01 * one, se=0.01 * one)
    assert verdicts(sound, own, 0.05)[0] == "reliable"
    # Mass that the proposal has found and no chain has been to; few draws may well have missed as much.
    assert verdicts(sound._replace(unseen=0.1 * one), own, 0.05)[0] == "chains disagree"
    assert verdicts(sound._replace(unseen=0.1 * one), own | {"ess_min": 60 * one}, 0.05)[0] == "reliable"
    # What the chains have seen that the proposal hardly ever draws.
    assert verdicts(sound._replace(se_is_by_chains=2 * one), own, 0.05)[0] == "chains disagree"


def test_chains_that_agree_poorly_are_believed_where_importance_sampling_alone_is_exact() -> None:
    one = np.ones(1)
    own = {"rhat_max": 1.19 * one, "ess_min": 21 * one, "missed_mass": 0 * one}
    exact = Bridge(log_z=0 * one, se=0.01 * one, log_z_is=0 * one, se_is=0.04 * one, se_is_by_chains=0.04 * one,
                   unseen=0 * one, overlap=one, n_iterations=one.astype(np.int32), is_converged=one > 0)  # fmt: skip
    assert verdicts(exact, own, 0.05)[0] == "reliable"
    assert verdicts(exact, own, 1.0)[0] == "reliable"
    not_so = [
        verdicts(exact, own, 0.03),
        verdicts(exact, own | {"rhat_max": 1.21 * one}, 0.05),
        verdicts(exact, own | {"ess_min": 19 * one}, 0.05),
        verdicts(exact, own | {"missed_mass": np.nan * one}, 0.05),  # no modes were looked for
        verdicts(exact._replace(se_is=0.06 * one), own, 1.0),
        verdicts(exact._replace(se_is_by_chains=0.06 * one), own, 1.0),
    ]
    assert [verdict[0] for verdict in not_so] == ["chains disagree"] * len(not_so)

"""What the engine may spend on a row: at first, and on further tries."""

from dataclasses import dataclass, replace

# What a row may take on each further try, as multiples of the first: warm-up, draws, pilot and proposal draws, starts.
# The last is the paper's budget, from the defaults.
_LARGER = ((2, 2, 2, 3), (8, 4, 2, 10))
# Starts at most, and steps uphill and modes at most on a further try.
_MOST_STARTS = 100
_N_FURTHER_CLIMBS, _N_FURTHER_MODES = 60, 48


@dataclass(frozen=True)
class EngineSettings:
    """How rows are drawn and scored."""

    chains: int = 4
    warm_up: int = 100
    draws: int = 100
    leapfrogs: int = 6
    target_acceptance: float = 0.8
    metric: str = "curvature"
    start: str = "modes"
    step_size: float = 0.0
    components: int = 5
    freedom: int = 8
    defensive_weight: float = 0.02
    pilot_draws: int = 2000
    proposal_draws: int = 10_000
    regulariser: float = 1e-3
    absolute_regulariser: float = 0.0
    target_se: float = 0.05
    escalations: int = 2
    starts: int = 0  # beside the encoder's; 0: by the number of latents
    climbs: int = 24  # at most; most rows need far fewer
    kept_modes: int = 16

    def n_starts(self, latent_dim: int) -> int:
        """Starts that a row tries beside the encoder's: few latents have room for many modes, and cost little."""
        return self.starts or min(15, max(7, 30 // latent_dim))

    def larger(self, level: int, latent_dim: int) -> "EngineSettings":
        """The budget of a further try."""
        warm_up, draws, proposed, starts = _LARGER[min(level, len(_LARGER)) - 1]
        return replace(
            self,
            escalations=0,
            starts=min(starts * self.n_starts(latent_dim), _MOST_STARTS),
            climbs=_N_FURTHER_CLIMBS,
            kept_modes=_N_FURTHER_MODES,
            warm_up=warm_up * self.warm_up,
            draws=draws * self.draws,
            pilot_draws=proposed * self.pilot_draws,
            proposal_draws=proposed * self.proposal_draws,
        )

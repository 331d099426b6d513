"""Learning the model: the terms of the objectives, the optimizers, the loops, and the diagnostics that choose."""

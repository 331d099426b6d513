"""Fitting the model: objectives, the loop with its checkpoints, recipes, and the selection by validation checks."""

"""Draws from the posterior of a latent given its row."""

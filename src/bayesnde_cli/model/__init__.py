"""Networks, the likelihood, and the engine they run on."""

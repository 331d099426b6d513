"""The table of a competitor's scores."""

SCORES_SCHEMA, SCORES_VERSION = "competitor_scores", 1

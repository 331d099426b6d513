"""One-dimensional invertible maps from a column's file units to the model's space, with their exact log-slopes.

    log p_file(y) = log p_scaled(u) + sum_j log du_j/dy_j

| map | column | u |
|---|---|---|
| `Affine` | any | shifted and scaled |
| `Logit` | bytes with noise, such as pixels | logit |
| `MixtureMarginal` | continuous; lattice with wide noise | normal score under a fitted mixture |
| `LatticeMarginal` | integers with noise | normal score under smoothed frequencies |
| `CategoricalMarginal` | label codes with noise | normal score under smoothed frequencies |
"""

"""What a fitted run is good for: new rows, outliers, classes, and the density of two columns on a grid."""

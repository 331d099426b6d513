"""From a file to rows in the model's space: readers, columns, splits, scaling, simulators."""

"""Statistics of tensors: from values in memory, from stored tensors, and by layer and group."""

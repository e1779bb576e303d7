"""The differences between two captures: pairs of datapoints, aligned tensors, the first divergence."""

"""Which pages, datapoints and tensors a command line names."""

"""Reading captured pages: folders and stores, datapoints, tensors and parts of them. Nothing is executed."""

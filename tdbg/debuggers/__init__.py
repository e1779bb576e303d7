"""Debuggers: what a layer put out, for every datapoint, copied as it runs and kept in pages."""

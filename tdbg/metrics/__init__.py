"""Metrics of a run: counted, averaged, named, kept and read. What a rank imports is the standard library alone."""

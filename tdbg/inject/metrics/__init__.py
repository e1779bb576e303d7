"""Metrics with no code at all: what tdbg sees of a program, as rows of the rank's ``metrics.jsonl``."""

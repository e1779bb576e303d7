"""Rows of `metrics.jsonl`: one row, its JSON, and how files of rows are read, summarized and compared."""

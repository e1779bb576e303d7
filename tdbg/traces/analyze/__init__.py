"""What a trace says: where the time of a step goes, memory, operators, ranks, and comparisons of traces."""

"""Summaries of traces as text, HTML, TensorBoard scalars, and as smaller traces."""

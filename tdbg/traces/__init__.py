"""Traces of torch.profiler, read where they lie: what a step was spent on, and what would shorten it. No torch."""

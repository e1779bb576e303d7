"""Callbacks for those who prefer a line of code to `tdbg run`: `lightning`, `transformers`, `ignite`."""

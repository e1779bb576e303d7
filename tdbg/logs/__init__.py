"""Log lines: how tdbg writes its own, and how any training log is read."""

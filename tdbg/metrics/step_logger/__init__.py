"""Writing metrics step by step: what is due when, averages, early stopping, and the end of the process."""

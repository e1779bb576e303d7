"""Start the command: boot folder, process, signals, terminal, exit status, and what is said meanwhile."""

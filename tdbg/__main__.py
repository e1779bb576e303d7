"""``python -m tdbg`` and the console script."""


def main() -> int:
    """Run the command line; returns the exit code."""
    return 0

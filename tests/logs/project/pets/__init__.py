"""The package of the small training program."""

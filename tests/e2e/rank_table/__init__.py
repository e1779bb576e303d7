"""Faults of jobs with several ranks: what each must be answered with, under which launcher, on how many ranks."""

"""Healthy programs, written by hand and generated: nothing above a note may be found in any of them."""

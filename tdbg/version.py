"""The version, alone: whoever names it loads nothing else. The build reads it from here."""

__version__ = "0.1.0"

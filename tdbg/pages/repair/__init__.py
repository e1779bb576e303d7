"""Verify what was captured, and recover what a killed writer left."""

"""Trace files and their events: found, decompressed, decoded batch by batch."""

"""The shared core: whatever two commands need stands here once, and imports nothing but the standard library at its top."""

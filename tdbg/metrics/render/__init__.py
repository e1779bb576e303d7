"""Curves of metrics, on a terminal or in an HTML file."""

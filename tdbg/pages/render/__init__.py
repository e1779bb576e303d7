"""Tensors as pictures, on a terminal or in an HTML file."""

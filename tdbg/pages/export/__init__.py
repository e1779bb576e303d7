"""Tensors as files of other programs. An exporter is one file in `exporters/`."""

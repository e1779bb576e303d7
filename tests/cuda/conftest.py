"""Collected where there is a CUDA device: `collect_ignore_glob` keeps these tests from being skipped elsewhere."""

import torch

from tests.e2e.conftest import bare_runner, watched_runner

__all__ = ["bare_runner", "watched_runner"]
collect_ignore_glob = [] if torch.cuda.is_available() else ["test_*.py"]

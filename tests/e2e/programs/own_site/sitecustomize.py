"""The user's own start-up file, which must run in every process and keep its place."""

import os
import sys

sys.own_start_up = f"{os.path.basename(os.path.dirname(__file__))}/sitecustomize"  # type: ignore[attr-defined]

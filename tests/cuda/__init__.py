"""What only a CUDA device can show: run where there is one (`pytest tests/cuda`), not collected elsewhere."""

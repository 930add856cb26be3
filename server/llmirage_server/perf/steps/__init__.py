"""One forward pass as the sum of its kernels."""

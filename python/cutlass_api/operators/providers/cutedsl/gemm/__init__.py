"""The modules of the original's GEMM operators that PyTorch imports."""

"""The modules of the original's provider that PyTorch imports."""

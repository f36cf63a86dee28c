"""Attention over tensors in files that do not fit in memory."""

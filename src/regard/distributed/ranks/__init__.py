"""Attention over the ranks of a process group: ring, Ulysses and all-gather."""

"""Adapters: the arguments of other attention functions as arguments of `regard.attention`."""

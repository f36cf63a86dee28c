"""Attention calls: their arguments, their checks and their hashable spec."""

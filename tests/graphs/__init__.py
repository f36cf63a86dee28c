"""Calls inside graphs that torch makes, exports, repeats and spreads over processes."""

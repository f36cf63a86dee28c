"""Mechanisms that are more than one call of `attention`."""

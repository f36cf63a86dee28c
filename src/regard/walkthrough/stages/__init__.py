"""Computes the stages of a call."""

"""Expressions over positions and scores: tracing, evaluation, bounds, derivatives, printing and serialization."""

"""Metrics of recorded heads: tables, head types, comparisons, relations and token groups."""

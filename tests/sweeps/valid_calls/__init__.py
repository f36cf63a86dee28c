"""A valid call of every public callable, one file per package; each file has `CALLS` and `LEFT_OUT` (name: reason)."""

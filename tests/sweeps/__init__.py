"""Sweeps over many generated calls. `make test-long` runs a seeded sample of each, `make test-exhaustive` all of it."""

"""Simulations, integrals and closed forms that the experiments compare."""

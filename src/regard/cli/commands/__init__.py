"""The commands of `regard`, one module each."""

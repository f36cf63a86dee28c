"""Everything that touches torch.compile, torch.export and torch's operator registry."""

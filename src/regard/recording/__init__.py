"""Record the attention calls of a model and analyze them without storing attention matrices."""

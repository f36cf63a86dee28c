"""Looking into models: what they attend to, at any length, without the matrix."""

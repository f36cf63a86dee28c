"""The flex backend: torch's FlexAttention."""

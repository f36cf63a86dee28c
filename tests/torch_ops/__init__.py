"""Attention in compiled, exported, checkpointed and sharded programs."""

"""Sizes of well-known models, for `regard cost`."""

from dataclasses import dataclass

from regard import cost as cost_formulas


@dataclass(frozen=True)
class ModelSizes:
    """The sizes of a decoder or encoder model."""

    num_layers: int
    embed_dim: int
    num_heads: int
    num_kv_heads: int
    ffn_dim: int
    has_gated_ffn: bool
    vocab_size: int

    def layer_non_attention(self, seq_len: int) -> cost_formulas.Flops:
        """Return the FLOPs of the projections and the feed-forward part of a layer."""
        projections = cost_formulas.projections(
            seq_len, seq_len, self.embed_dim, num_heads=self.num_heads, num_kv_heads=self.num_kv_heads
        )
        return projections + cost_formulas.feed_forward(seq_len, self.embed_dim, self.ffn_dim, gated=self.has_gated_ffn)

    def non_attention(self, seq_len: int) -> cost_formulas.Flops:
        """Return the FLOPs of the model except attention: those of its layers and of the output head."""
        return self.num_layers * self.layer_non_attention(seq_len) + cost_formulas.lm_head(
            seq_len, self.embed_dim, self.vocab_size
        )


MODEL_SIZES = {
    "gpt2": ModelSizes(12, 768, 12, 12, 3072, False, 50257),
    "gpt2-xl": ModelSizes(48, 1600, 25, 25, 6400, False, 50257),
    "bert-base": ModelSizes(12, 768, 12, 12, 3072, False, 30522),
    "llama-2-7b": ModelSizes(32, 4096, 32, 32, 11008, True, 32000),
    "llama-3-8b": ModelSizes(32, 4096, 32, 8, 14336, True, 128256),
    "mistral-7b": ModelSizes(32, 4096, 32, 8, 14336, True, 32000),
}

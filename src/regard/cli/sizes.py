"""The sizes of models that costs are told for."""

from dataclasses import dataclass

from regard import cost as price


@dataclass(frozen=True)
class Size:
    """The sizes of a model; F is the width of its feed-forward part."""

    layers: int
    width: int
    heads: int
    key_heads: int
    feed_forward: int
    gated: bool
    vocabulary: int

    def layer(self, n: int) -> price.Flops:
        """What is not attention in a layer: projections and the feed-forward part."""
        projections = price.projections(n, n, self.width, heads=self.heads, key_heads=self.key_heads)
        return projections + price.feed_forward(n, self.width, self.feed_forward, gated=self.gated)

    def rest(self, n: int) -> price.Flops:
        """What is not attention in the model: its layers' and the output head."""
        return self.layers * self.layer(n) + price.vocabulary(n, self.width, self.vocabulary)


SIZES = {
    "gpt2": Size(12, 768, 12, 12, 3072, False, 50257),
    "gpt2-xl": Size(48, 1600, 25, 25, 6400, False, 50257),
    "bert-base": Size(12, 768, 12, 12, 3072, False, 30522),
    "llama-2-7b": Size(32, 4096, 32, 32, 11008, True, 32000),
    "llama-3-8b": Size(32, 4096, 32, 8, 14336, True, 128256),
    "mistral-7b": Size(32, 4096, 32, 8, 14336, True, 32000),
}

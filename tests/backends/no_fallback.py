"""A fallback of the native backend that must not run."""

from regard.backends.tiled import TiledBackend


class NoFallback(TiledBackend):
    """A fallback that must not run: the native backend supports these calls."""

    def forward(self, *args: object) -> object:
        raise AssertionError("the forward pass fell back")

    def backward(self, *args: object) -> object:
        raise AssertionError("the backward pass fell back")

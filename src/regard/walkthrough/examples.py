"""Two published attention examples, with their inputs, the published values, and corrections.

The first is from "Idea/Concept", a note of the theme "Attention Mechanism". Its numbers are right up to rounding, but
its text omits a step. The second is from "Mathematics". Its numbers are wrong from the first step on.
"""

from dataclasses import dataclass

from regard.errors import ArgumentError
from regard.walkthrough.projection import Projection, project

__all__ = ["WALKTHROUGH_EXAMPLES", "WalkthroughExample", "get_example"]

MatrixRows = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class WalkthroughExample:
    """An example: tokens, the three projection matrices, the published numbers, and sentences that correct them."""

    name: str
    title: str
    tokens: tuple[str, ...]
    x: MatrixRows
    w_q: MatrixRows
    w_k: MatrixRows
    w_v: MatrixRows
    published_values: dict[str, MatrixRows]
    corrections: tuple[str, ...]

    @property
    def inputs(self) -> tuple[Projection, Projection, Projection]:
        """Q, K and V as arguments of `regard.steps`, each as the projection of the tokens.

        >>> from regard.walkthrough.steps import steps
        >>> steps(*get_example("three-tokens").inputs)["weights"].values[0].tolist()
        [0.39111..., 0.29622..., 0.31266...]
        """
        return project(self.x, self.w_q), project(self.x, self.w_k), project(self.x, self.w_v)


def get_example(name: str) -> WalkthroughExample:
    """Return the example with this name: "dog-ate-dinner" or "three-tokens".

    >>> get_example("dog-ate-dinner").tokens
    ('dog', 'ate', 'dinner')
    """
    if name not in WALKTHROUGH_EXAMPLES:
        raise ArgumentError(f"an example must be one of {', '.join(WALKTHROUGH_EXAMPLES)}; got {name!r}.")
    return WALKTHROUGH_EXAMPLES[name]


DOG_ATE_DINNER = WalkthroughExample(
    name="dog-ate-dinner",
    title="Three words of three numbers, one head of dimension 2",
    tokens=("dog", "ate", "dinner"),
    x=((1, 2, 3), (0.5, 1, 1.5), (2, 1, 0.5)),
    w_q=((0.6, -0.2), (0.1, 0.5), (-0.3, 0.4)),
    w_k=((0.2, 0.3), (-0.4, 0.7), (0.5, -0.1)),
    w_v=((0.9, 0.1), (0.2, 0.8), (-0.1, 0.6)),
    published_values={"weights": ((0.448, 0.172, 0.380),), "output": ((1.275, 2.363),)},
    corrections=(
        (
            'The weights are introduced as "after softmax" of the products; they are softmax of the products over √2. '
            "Without that step the weights of dog would be 0.488, 0.126, 0.386 and its output 1.304, 2.431."
        ),
        "The output 2.363 was computed from rounded weights; rounded once, at the end, it is 2.364.",
    ),
)

THREE_TOKENS = WalkthroughExample(
    name="three-tokens",
    title="Three tokens of four numbers, one head of dimension 2",
    tokens=("token 1", "token 2", "token 3"),
    x=((1, 0.5, 0.2, 0.8), (0.3, 0.9, 0.1, 0.4), (0.7, 0.2, 0.6, 0.3)),
    w_q=((0.5, 0.3), (0.2, 0.4), (0.1, 0.6), (0.7, 0.2)),
    w_k=((0.4, 0.1), (0.3, 0.5), (0.6, 0.2), (0.2, 0.4)),
    w_v=((0.6, 0.3), (0.2, 0.7), (0.4, 0.1), (0.3, 0.5)),
    published_values={
        "Q": ((1.07, 0.77), (0.47, 0.57), (0.61, 0.55)),
        "K": ((0.79, 0.79), (0.35, 0.51), (0.62, 0.41)),
        "V": ((1.09, 0.97), (0.44, 0.59), (0.71, 0.52)),
        "scaled": ((1.03, 0.54, 0.77),),
        "weights": ((0.48, 0.25, 0.27),),
        "output": ((0.81, 0.78), (0.64, 0.65), (0.71, 0.68)),
    },
    corrections=(
        "Q, K and V are not X times the matrices: Q begins with 1.18, 0.78, not with 1.07, 0.77.",
        ("The products do not follow from the published Q and K: 1.09 should be 0.9791, and 0.66 should be 0.8216."),
        "The softmax of the scaled row 1.03, 0.54, 0.77 is 0.4195, 0.2570, 0.3235, not 0.48, 0.25, 0.27.",
        "The published weights and V give the output 0.8249, 0.7535, not 0.81, 0.78.",
        "Computed from X, the first row of weights is 0.391, 0.296, 0.313 and its output 0.800, 0.869.",
    ),
)

WALKTHROUGH_EXAMPLES = {example.name: example for example in (DOG_ATE_DINNER, THREE_TOKENS)}

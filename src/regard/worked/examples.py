"""Two examples that are in circulation, worked rightly: their inputs, what was said of them, and what is wrong with it.

The first has right numbers and leaves out a step it took. The second goes wrong from its first step on.
"""

from dataclasses import dataclass

from regard.errors import SpecError
from regard.worked.projection import Projected, projected

Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Example:
    """Tokens and the three matrices; `printed` are numbers as they are in circulation, `wrong` says what is wrong."""

    name: str
    title: str
    words: tuple[str, ...]
    x: Matrix
    w_q: Matrix
    w_k: Matrix
    w_v: Matrix
    printed: dict[str, Matrix]
    wrong: tuple[str, ...]

    @property
    def inputs(self) -> tuple[Projected, Projected, Projected]:
        """Q, K and V as `regard.steps` takes them, with the tokens they are made of.

        >>> from regard.worked.steps import steps
        >>> steps(*example("three-tokens").inputs)["weights"].values[0].tolist()
        [0.39111..., 0.29622..., 0.31266...]
        """
        return projected(self.x, self.w_q), projected(self.x, self.w_k), projected(self.x, self.w_v)


def example(name: str) -> Example:
    """The example of a name."""
    if name not in EXAMPLES:
        raise SpecError(f"an example must be one of {', '.join(EXAMPLES)}; got {name!r}.")
    return EXAMPLES[name]


DOG_ATE_DINNER = Example(
    name="dog-ate-dinner",
    title="Three words of three numbers, one head of width 2",
    words=("dog", "ate", "dinner"),
    x=((1, 2, 3), (0.5, 1, 1.5), (2, 1, 0.5)),
    w_q=((0.6, -0.2), (0.1, 0.5), (-0.3, 0.4)),
    w_k=((0.2, 0.3), (-0.4, 0.7), (0.5, -0.1)),
    w_v=((0.9, 0.1), (0.2, 0.8), (-0.1, 0.6)),
    printed={"weights": ((0.448, 0.172, 0.380),), "output": ((1.275, 2.363),)},
    wrong=(
        (
            'The weights are introduced as "after softmax" of the products; they are softmax of the products over √2. '
            "Without that step the weights of dog would be 0.488, 0.126, 0.386 and its output 1.304, 2.431."
        ),
        "The output 2.363 was computed from rounded weights; rounded once, at the end, it is 2.364.",
    ),
)

THREE_TOKENS = Example(
    name="three-tokens",
    title="Three tokens of four numbers, one head of width 2",
    words=("token 1", "token 2", "token 3"),
    x=((1, 0.5, 0.2, 0.8), (0.3, 0.9, 0.1, 0.4), (0.7, 0.2, 0.6, 0.3)),
    w_q=((0.5, 0.3), (0.2, 0.4), (0.1, 0.6), (0.7, 0.2)),
    w_k=((0.4, 0.1), (0.3, 0.5), (0.6, 0.2), (0.2, 0.4)),
    w_v=((0.6, 0.3), (0.2, 0.7), (0.4, 0.1), (0.3, 0.5)),
    printed={
        "Q": ((1.07, 0.77), (0.47, 0.57), (0.61, 0.55)),
        "K": ((0.79, 0.79), (0.35, 0.51), (0.62, 0.41)),
        "V": ((1.09, 0.97), (0.44, 0.59), (0.71, 0.52)),
        "scaled": ((1.03, 0.54, 0.77),),
        "weights": ((0.48, 0.25, 0.27),),
        "output": ((0.81, 0.78), (0.64, 0.65), (0.71, 0.68)),
    },
    wrong=(
        "Q, K and V are not X times the matrices: Q begins with 1.18, 0.78, not with 1.07, 0.77.",
        (
            "The products do not follow from the Q and K beside them: 1.09 stands where these give 0.9791, and 0.66 "
            "where they give 0.8216."
        ),
        "Softmax of the scaled row 1.03, 0.54, 0.77 is 0.4195, 0.2570, 0.3235; 0.48, 0.25, 0.27 stands there.",
        "These weights and the V beside them give 0.8249, 0.7535; 0.81, 0.78 stands there.",
        "Worked rightly from X, the first row of weights is 0.391, 0.296, 0.313 and its output 0.800, 0.869.",
    ),
)

EXAMPLES = {each.name: each for each in (DOG_ATE_DINNER, THREE_TOKENS)}

"""Templates of stages: name, description, and formula as text and as LaTeX, with placeholders such as `$name`."""

from string import Template
from typing import NamedTuple


class StageTemplate(NamedTuple):
    """The name, the description and the formulas of a stage, with placeholders."""

    name: str
    description: str
    formula: str
    latex: str

    def fill(self, substitutions: dict[str, object]) -> "StageTemplate":
        """Return the template with values for its placeholders."""
        return StageTemplate(*(Template(text).substitute(substitutions) for text in self))


INPUT_TEMPLATES = {
    "tokens": StageTemplate("$name", "the tokens, one per row", "$name", "$name"),
    "matrix": StageTemplate(
        "W_$letter", "the learned matrix that projects a token to a $kind", "W_$letter", "W_$letter"
    ),
    "Q": StageTemplate("Q", "the queries, one per row", "$product", "$product"),
    "K": StageTemplate("K", "the keys, one per row", "$product", "$product"),
    "V": StageTemplate("V", "the values, one per row", "$product", "$product"),
    "transformed values": StageTemplate(
        "transformed values", "the function of the call, applied to the values", "g(V)", "g(V)"
    ),
}

MASK_TEMPLATES = {
    "modifier": StageTemplate(
        "$name", "$description", "s_ij = $formula, where s is the previous score", r"s_{ij} \leftarrow $latex"
    ),
    "visible": StageTemplate("visible", "which keys each query may attend to", "visible where $formula", "$latex"),
    "masked": StageTemplate(
        "masked",
        "hidden pairs have the score -∞, so that their weight is exactly 0",
        "s_ij where visible, -∞ elsewhere",
        r"s_{ij} \text{ where visible, } -\infty \text{ elsewhere}",
    ),
    "masked products": StageTemplate(
        "masked",
        "hidden pairs have the product 0, so that their weight is exactly 0",
        "w_ij where visible, 0 elsewhere",
        r"w_{ij} \text{ where visible, } 0 \text{ elsewhere}",
    ),
}

WEIGHT_TEMPLATES = {
    "statistic": StageTemplate(
        "$name", "the statistic of each row that determines its weights", "$name", r"\text{$name}"
    ),
    "custom normalizer": StageTemplate("weights", "the weights of $name", "$formula", r"\text{$name}(S)"),
}

OUTPUT_TEMPLATES = {
    "dropout mask": StageTemplate(
        "dropout mask",
        "which weights are kept: each is dropped with probability $dropout, drawn with seed $seed",
        "keep_ij",
        r"\kappa_{ij}",
    ),
    "after dropout": StageTemplate(
        "after dropout",
        "the remaining weights divided by $keep_probability, so that their sum is the same on average",
        "keep_ij a_ij / $keep_probability",
        r"\frac{\kappa_{ij} a_{ij}}{$keep_probability}",
    ),
    "output": StageTemplate(
        "output",
        "the weighted sum of the values, for each query",
        "o_i = Σ_j a_ij v_j",
        "O = A V",
    ),
    "weighted values": StageTemplate("weighted values", "the weighted sum of the values", "Σ_j a_ij v_j", "A V"),
    "relative value table": StageTemplate(
        "relative value table", "a vector for each distance, from far before the query to far after it", "t", "t"
    ),
    "relative values": StageTemplate(
        "relative values",
        "the weighted sum of the vectors of the distances",
        "Σ_j a_ij t[clip(j - p)]",
        r"\sum_j a_{ij} t_{\mathrm{clip}(j - p)}",
    ),
    "output with relative values": StageTemplate(
        "output",
        "the sum of both, for each query",
        "o_i = Σ_j a_ij (v_j + t[clip(j - p)])",
        r"o_i = \sum_j a_{ij} (v_j + t_{\mathrm{clip}(j - p)})",
    ),
}

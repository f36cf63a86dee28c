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
    "tokens": StageTemplate("$name", "the tokens, a row each", "$name", "$name"),
    "matrix": StageTemplate(
        "W_$letter", "the learned matrix that projects a token to a $kind", "W_$letter", "W_$letter"
    ),
    "Q": StageTemplate("Q", "the queries, a row each", "$product", "$product"),
    "K": StageTemplate("K", "the keys, a row each", "$product", "$product"),
    "V": StageTemplate("V", "the values, a row each", "$product", "$product"),
    "transformed values": StageTemplate(
        "transformed values", "the function of the call, applied to the values", "g(V)", "g(V)"
    ),
}

SCORE_TEMPLATES = {
    "products": StageTemplate(
        "products",
        "the dot product of each query with each key: large where both point the same way",
        "s_ij = q_i · k_j",
        r"S = Q K^\top",
    ),
    "divided by sqrt(d)": StageTemplate(
        "scaled",
        "divided by the square root of the head dimension, so that scores do not grow with it",
        "s_ij = q_i · k_j / √$head_dim",
        r"\frac{Q K^\top}{\sqrt{$head_dim}}",
    ),
    "scaled": StageTemplate("scaled", "times $scale", "s_ij = $scale s_ij", r"$scale \, S"),
    "scale": StageTemplate("scale", "a number that every score is multiplied with", "c", "c"),
    "scaled by head": StageTemplate("scaled", "times the scale", "s_ij = c s_ij", r"c \, S"),
    "W": StageTemplate("W", "the matrix between queries and keys", "W", "W"),
    "q W": StageTemplate("q W", "each query times W", "q_i W", "Q W"),
    "products through W": StageTemplate(
        "products",
        "the dot product of each projected query with each key",
        "s_ij = q_i · W · k_j",
        r"S = Q W K^\top",
    ),
    "length": StageTemplate(
        "length of $letter", "the Euclidean length of each $kind", "|$letter|", r"\lVert $letter \rVert"
    ),
    "unit": StageTemplate(
        "unit $letter",
        "the same directions, each of length 1",
        "$letter / |$letter|",
        r"\frac{$letter}{\lVert $letter \rVert}",
    ),
    "cosines": StageTemplate(
        "cosines",
        "the cosine of the angle between each query and each key: from -1 to 1",
        "s_ij = cos(q_i, k_j)",
        r"s_{ij} = \cos(q_i, k_j)",
    ),
    "squared distances": StageTemplate(
        "squared distances",
        "the squared distance of each query from each key",
        "d_ij = |q_i - k_j|²",
        r"d_{ij} = \lVert q_i - k_j \rVert^2",
    ),
    "sigma": StageTemplate("sigma", "the standard deviation of the Gaussian", "σ", r"\sigma"),
    "negative distances": StageTemplate(
        "negative distances",
        "minus the squared distance over 2σ²: larger for nearer pairs",
        "s_ij = -d_ij / 2σ²",
        r"s_{ij} = -\frac{d_{ij}}{2 \sigma^2}",
    ),
    "M": StageTemplate("M", "the matrix of the distance; only its symmetric part counts", "M", "M"),
    "squared distances by M": StageTemplate(
        "squared distances",
        "the squared distance of each query from each key, with the matrix M",
        "d_ij = (q_i - k_j)' M (q_i - k_j)",
        r"d_{ij} = (q_i - k_j)^\top M (q_i - k_j)",
    ),
    "negative distances by M": StageTemplate(
        "negative distances",
        "minus half of the squared distance: larger for nearer pairs",
        "s_ij = -d_ij / 2",
        r"s_{ij} = -\frac{d_{ij}}{2}",
    ),
    "additive matrix": StageTemplate(
        "W_$letter", "the matrix that projects each $kind to the hidden layer", "W_$letter", "W_$letter"
    ),
    "bias": StageTemplate("bias", "added to the hidden layer of every query", "b", "b"),
    "hidden": StageTemplate("hidden $letter", "the hidden layer of each $kind", "$formula", "$formula"),
    "u": StageTemplate("u", "the weight of each hidden unit", "u", "u"),
    "tanh": StageTemplate(
        "tanh",
        "tanh of the sum of both hidden layers, for each pair",
        "tanh(W_q q_i + W_k k_j)",
        r"\tanh(W_q q_i + W_k k_j)",
    ),
    "additive": StageTemplate(
        "scores",
        "the dot product of the hidden layer of each pair with u",
        "s_ij = u · tanh(W_q q_i + W_k k_j)",
        r"s_{ij} = u^\top \tanh(W_q q_i + W_k k_j)",
    ),
    "features": StageTemplate(
        "features of $letter",
        "each $kind as features that are never negative$more: $formula",
        "φ($letter)",
        r"\varphi($letter)",
    ),
    "kernel products": StageTemplate(
        "products",
        "the dot product of the features of each query and each key, never negative",
        "w_ij = φ(q_i) · φ(k_j)",
        r"w_{ij} = \varphi(q_i)^\top \varphi(k_j)",
    ),
    "distance factor": StageTemplate("distance factor", "larger for nearer pairs", "c_ij", "c_{ij}"),
    "distance-weighted products": StageTemplate(
        "distance-weighted products",
        "the products, each times the factor of its distance",
        "w_ij = c_ij w_ij",
        "w_{ij} = c_{ij} w_{ij}",
    ),
    "custom score": StageTemplate(
        "scores", "the score function of the call, for each pair", "s_ij = $formula", "s_{ij} = f(q_i, k_j)"
    ),
}

MODIFIER_DESCRIPTIONS = {
    "alibi": "minus a slope times the distance",
    "softcap": "tanh keeps every score below the cap",
    "bias": "plus a number of each pair",
    "t5_bias": "plus a learned number of the distance",
    "shaw_keys": "plus the dot product of the query with a learned vector of the distance",
    "modifier": "changed by a score modifier",
    "times alpha minus 1": "times α - 1, the input of entmax",
    "plus bias": "plus a bias",
    "with gumbel noise": "plus noise of a Gumbel distribution, divided by the temperature",
    "prepared scores": "the input of the normalizer",
}

# formulas of modifiers that are too long to write out
ABBREVIATED_FORMULAS = {
    "with gumbel noise": ("(s - log(-log(u_ij))) / temperature", r"\frac{s - \log(-\log u_{ij})}{T}"),
    "modifier": ("f(s, b, h, i, j)", "f(s, b, h, i, j)"),
}

MASK_TEMPLATES = {
    "modifier": StageTemplate("$name", "$description", "s_ij = $formula, s as before", r"s_{ij} \leftarrow $latex"),
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
    "sink": StageTemplate("sink", "the score of one more key, whose value is zero", "b", "b"),
    "row maximum": StageTemplate(
        "row maximum", "the largest score of each query", "m_i = max_j s_ij", r"m_i = \max_j s_{ij}"
    ),
    "row maximum with a sink": StageTemplate(
        "row maximum",
        "the largest score of each query, or that of the sink if it is larger",
        "m_i = max(b, max_j s_ij)",
        r"m_i = \max(b, \max_j s_{ij})",
    ),
    "minus maximum": StageTemplate(
        "minus maximum",
        "minus the maximum of the row, so that exp cannot overflow; the weights do not change",
        "s_ij - m_i",
        "s_{ij} - m_i",
    ),
    "exp": StageTemplate(
        "exp", "the exponential of each score; 0 for hidden pairs", "exp(s_ij - m_i)", "e^{s_{ij} - m_i}"
    ),
    "row sum": StageTemplate(
        "row sum", "the sum of each row", "z_i = Σ_j exp(s_ij - m_i)", r"z_i = \sum_j e^{s_{ij} - m_i}"
    ),
    "row sum with a sink": StageTemplate(
        "row sum",
        "the sum of each row, and the sink",
        "z_i = exp(b - m_i) + Σ_j exp(s_ij - m_i)",
        r"z_i = e^{b - m_i} + \sum_j e^{s_{ij} - m_i}",
    ),
    "softmax": StageTemplate(
        "weights",
        "each number divided by the sum of its row",
        "a_ij = exp(s_ij - m_i) / z_i",
        r"a_{ij} = \frac{e^{s_{ij} - m_i}}{z_i}",
    ),
    "sum of kernel products": StageTemplate("row sum", "the sum of each row", "z_i = Σ_j w_ij", r"z_i = \sum_j w_{ij}"),
    "row-normalized": StageTemplate(
        "weights",
        "each number divided by the sum of its row",
        "a_ij = w_ij / z_i",
        r"a_{ij} = \frac{w_{ij}}{z_i}",
    ),
    "tau": StageTemplate(
        "tau",
        "the threshold of each query, such that its weights sum to 1",
        "τ_i with Σ_j a_ij = 1",
        r"\tau_i : \sum_j a_{ij} = 1",
    ),
    "support": StageTemplate(
        "support",
        "which keys lie above the threshold: only these have a weight above 0",
        "s_ij > τ_i",
        r"s_{ij} > \tau_i",
    ),
    "above tau": StageTemplate(
        "above tau",
        "the difference to the threshold, and 0 below it",
        "max(s_ij - τ_i, 0)",
        r"\max(s_{ij} - \tau_i, 0)",
    ),
    "sparsemax": StageTemplate(
        "weights",
        "the difference to the threshold",
        "a_ij = max(s_ij - τ_i, 0)",
        r"a_{ij} = \max(s_{ij} - \tau_i, 0)",
    ),
    "exponent": StageTemplate("exponent", "the exponent of entmax", "p = 1 / (α - 1)", r"p = \frac{1}{\alpha - 1}"),
    "entmax": StageTemplate(
        "weights",
        "the difference to the threshold, to the power of 1 / (α - 1)",
        "a_ij = max(s_ij - τ_i, 0)^p",
        r"a_{ij} = \max(s_{ij} - \tau_i, 0)^p",
    ),
    "top-k threshold": StageTemplate(
        "threshold",
        "a number between the $k largest scores of a row and the others; ties stay above it",
        "t_i",
        "t_i",
    ),
    "top-k scores": StageTemplate(
        "top-k scores",
        "the $k largest scores of each row; the others are hidden",
        "s_ij where s_ij ≥ t_i, -∞ elsewhere",
        r"s_{ij} \text{ where } s_{ij} \geq t_i, -\infty \text{ elsewhere}",
    ),
    "hardmax threshold": StageTemplate(
        "threshold", "a number between the largest score of a row and the next", "t_i", "t_i"
    ),
    "largest": StageTemplate("largest", "which keys score highest", "s_ij ≥ t_i", r"s_{ij} \geq t_i"),
    "hardmax": StageTemplate(
        "weights",
        "all weight on the largest score; keys that tie share it",
        "a_ij = 1 / number of the largest",
        r"a_{ij} = \frac{[s_{ij} \geq t_i]}{\sum_l [s_{il} \geq t_i]}",
    ),
    "sigmoid": StageTemplate(
        "weights",
        "the sigmoid of each score; a row may have any sum",
        "a_ij = 1 / (1 + exp(-s_ij))",
        r"a_{ij} = \sigma(s_{ij})",
    ),
    "positive": StageTemplate("positive", "the score, or 0 if it is negative", "max(s_ij, 0)", r"\max(s_{ij}, 0)"),
    "factor": StageTemplate("factor", "the factor of every weight: 1 / n by default", "c", "c"),
    "relu": StageTemplate(
        "weights",
        "times the factor; a row may have any sum",
        "a_ij = c max(s_ij, 0)",
        r"a_{ij} = c \max(s_{ij}, 0)",
    ),
    "rows": StageTemplate(
        "rows $iteration", "each row divided by its sum", "a_ij / Σ_j a_ij", r"\frac{a_{ij}}{\sum_j a_{ij}}"
    ),
    "columns": StageTemplate(
        "columns $iteration", "each column divided by its sum", "a_ij / Σ_i a_ij", r"\frac{a_{ij}}{\sum_i a_{ij}}"
    ),
    "sinkhorn": StageTemplate(
        "weights", "each row divided by its sum", "a_ij / Σ_j a_ij", r"\frac{a_{ij}}{\sum_j a_{ij}}"
    ),
    "statistic": StageTemplate(
        "$name", "the statistic of each row that determines its weights", "$name", r"\text{$name}"
    ),
    "custom normalizer": StageTemplate("weights", "the weights of $name", "$formula", r"\text{$name}(S)"),
}

OUTPUT_TEMPLATES = {
    "dropout mask": StageTemplate(
        "dropout mask",
        "which weights stay: each becomes 0 with probability $dropout, decided by the seed $seed",
        "keep_ij",
        r"\kappa_{ij}",
    ),
    "after dropout": StageTemplate(
        "after dropout",
        "the remaining weights over $keep_probability, so that the sum is the same on average",
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

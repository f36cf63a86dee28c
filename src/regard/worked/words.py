"""What is said of each stage: its name, what it is in plain words, and its formula as text and as LaTeX.

`$name` stands for something that a call fills in.
"""

from string import Template
from typing import NamedTuple


class Said(NamedTuple):
    """The words of a stage."""

    name: str
    words: str
    formula: str
    latex: str

    def filled(self, fillings: dict[str, object]) -> "Said":
        """The same with what a call fills in."""
        return Said(*(Template(text).substitute(fillings) for text in self))


INPUTS = {
    "tokens": Said("$name", "the tokens, a row each", "$name", "$name"),
    "matrix": Said(
        "W_$letter", "the matrix that turns a token into a $kind; a model learns it", "W_$letter", "W_$letter"
    ),
    "Q": Said("Q", "the queries, a row each: what is asked", "$made", "$made"),
    "K": Said("K", "the keys, a row each: what each can be found by", "$made", "$made"),
    "V": Said("V", "the values, a row each: what each has to say", "$made", "$made"),
    "changed values": Said("changed values", "the values as the function that was given changes them", "g(V)", "g(V)"),
}

SCORES = {
    "products": Said(
        "products",
        "the dot product of each query with each key: large where both point the same way",
        "s_ij = q_i · k_j",
        r"S = Q K^\top",
    ),
    "over the root": Said(
        "scaled",
        "divided by the root of the width, so that wide vectors do not score higher for being wide",
        "s_ij = q_i · k_j / √$width",
        r"\frac{Q K^\top}{\sqrt{$width}}",
    ),
    "scaled": Said("scaled", "times $scale", "s_ij = $scale s_ij", r"$scale \, S"),
    "scale": Said("scale", "a number that every score is multiplied with", "c", "c"),
    "scaled by head": Said("scaled", "times the scale", "s_ij = c s_ij", r"c \, S"),
    "W": Said("W", "the matrix between queries and keys", "W", "W"),
    "q W": Said("q W", "each query as the keys see it", "q_i W", "Q W"),
    "products through W": Said(
        "products",
        "the dot product of each turned query with each key",
        "s_ij = q_i · W · k_j",
        r"S = Q W K^\top",
    ),
    "length": Said("length of $letter", "how long each $kind is", "|$letter|", r"\lVert $letter \rVert"),
    "unit": Said(
        "unit $letter",
        "the same directions, each of length 1",
        "$letter / |$letter|",
        r"\frac{$letter}{\lVert $letter \rVert}",
    ),
    "cosines": Said(
        "cosines",
        "the cosine of the angle between each query and each key: from -1 to 1",
        "s_ij = cos(q_i, k_j)",
        r"s_{ij} = \cos(q_i, k_j)",
    ),
    "squared distances": Said(
        "squared distances",
        "how far each query is from each key, squared",
        "d_ij = |q_i - k_j|²",
        r"d_{ij} = \lVert q_i - k_j \rVert^2",
    ),
    "sigma": Said("sigma", "how far is far", "σ", r"\sigma"),
    "nearness": Said(
        "nearness",
        "the squared distance over 2σ², below zero: near is large",
        "s_ij = -d_ij / 2σ²",
        r"s_{ij} = -\frac{d_{ij}}{2 \sigma^2}",
    ),
    "M": Said("M", "the matrix that measures; only its symmetric part counts", "M", "M"),
    "squared distances by M": Said(
        "squared distances",
        "how far each query is from each key as M measures, squared",
        "d_ij = (q_i - k_j)' M (q_i - k_j)",
        r"d_{ij} = (q_i - k_j)^\top M (q_i - k_j)",
    ),
    "nearness by M": Said(
        "nearness",
        "half of the squared distance, below zero: near is large",
        "s_ij = -d_ij / 2",
        r"s_{ij} = -\frac{d_{ij}}{2}",
    ),
    "additive matrix": Said(
        "W_$letter", "the matrix that turns each $kind into hidden numbers", "W_$letter", "W_$letter"
    ),
    "bias": Said("bias", "added to the hidden numbers of every query", "b", "b"),
    "turned": Said("turned $letter", "the hidden numbers of each $kind", "$formula", "$formula"),
    "u": Said("u", "how much each of the hidden numbers counts", "u", "u"),
    "tanh": Said(
        "tanh",
        "those of both added and bent by tanh, for each pair",
        "tanh(W_q q_i + W_k k_j)",
        r"\tanh(W_q q_i + W_k k_j)",
    ),
    "additive": Said(
        "scores",
        "the hidden numbers of each pair, each times its u, added up",
        "s_ij = u · tanh(W_q q_i + W_k k_j)",
        r"s_{ij} = u^\top \tanh(W_q q_i + W_k k_j)",
    ),
    "features": Said(
        "features of $letter",
        "each $kind as features that are never negative$more: $formula",
        "φ($letter)",
        r"\varphi($letter)",
    ),
    "likeness": Said(
        "products",
        "the product of the features of each query and each key: how alike they are, never negative",
        "w_ij = φ(q_i) · φ(k_j)",
        r"w_{ij} = \varphi(q_i)^\top \varphi(k_j)",
    ),
    "factor of distance": Said("factor of distance", "near is large", "c_ij", "c_{ij}"),
    "nearby": Said(
        "nearby", "the products, each times the factor of its distance", "w_ij = c_ij w_ij", "w_{ij} = c_{ij} w_{ij}"
    ),
    "given": Said(
        "scores", "what the score of the call gives for each pair", "s_ij = $formula", "s_{ij} = f(q_i, k_j)"
    ),
}

RULES = {
    "alibi": "less a slope times the distance: nearer is better",
    "softcap": "bent by tanh, so that no score goes beyond the cap",
    "bias": "a number of each pair is added",
    "relative": "a learned number of the distance is added",
    "shaw_keys": "the product of the query with a learned vector of the distance is added",
    "rule": "changed by a rule",
    "multiplied": "times α - 1, as entmax takes them",
    "shifted": "a bias is added to every score",
    "noisy": "noise of a Gumbel distribution is added, and the sum divided by the temperature",
    "prepared": "prepared for the weighing",
}

# of rules that would fill pages, if they were written out
SHORTENED = {
    "noisy": ("(s - log(-log(u_ij))) / temperature", r"\frac{s - \log(-\log u_{ij})}{T}"),
    "rule": ("f(s, b, h, i, j)", "f(s, b, h, i, j)"),
}

MASKS = {
    "rule": Said("$name", "$words", "s_ij = $formula, s as before", r"s_{ij} \leftarrow $latex"),
    "seen": Said("seen", "which query may look at which key", "seen where $formula", "$latex"),
    "masked": Said(
        "masked",
        "what is hidden scores -∞, so that it will weigh exactly 0",
        "s_ij where seen, -∞ elsewhere",
        r"s_{ij} \text{ where seen, } -\infty \text{ elsewhere}",
    ),
    "counted": Said(
        "masked",
        "what is hidden counts 0, so that it will weigh exactly 0",
        "w_ij where seen, 0 elsewhere",
        r"w_{ij} \text{ where seen, } 0 \text{ elsewhere}",
    ),
}

WEIGHTS = {
    "sink": Said("sink", "the score of one more key, whose value is zero", "b", "b"),
    "row maximum": Said("row maximum", "the largest score of each query", "m_i = max_j s_ij", r"m_i = \max_j s_{ij}"),
    "row maximum with a sink": Said(
        "row maximum",
        "the largest score of each query, or that of the sink if it is larger",
        "m_i = max(b, max_j s_ij)",
        r"m_i = \max(b, \max_j s_{ij})",
    ),
    "below maximum": Said(
        "below maximum",
        "measured from the row's maximum: this cancels later, and no exp can overflow",
        "s_ij - m_i",
        "s_{ij} - m_i",
    ),
    "exp": Said(
        "exp", "every number made positive; a hidden one becomes exactly 0", "exp(s_ij - m_i)", "e^{s_{ij} - m_i}"
    ),
    "row sum": Said("row sum", "the sum of each row", "z_i = Σ_j exp(s_ij - m_i)", r"z_i = \sum_j e^{s_{ij} - m_i}"),
    "row sum with a sink": Said(
        "row sum",
        "the sum of each row, and the sink",
        "z_i = exp(b - m_i) + Σ_j exp(s_ij - m_i)",
        r"z_i = e^{b - m_i} + \sum_j e^{s_{ij} - m_i}",
    ),
    "softmax": Said(
        "weights",
        "each divided by the sum of its row: the weights",
        "a_ij = exp(s_ij - m_i) / z_i",
        r"a_{ij} = \frac{e^{s_{ij} - m_i}}{z_i}",
    ),
    "sum of likeness": Said("row sum", "the sum of each row", "z_i = Σ_j w_ij", r"z_i = \sum_j w_{ij}"),
    "shares": Said(
        "weights",
        "each divided by the sum of its row: the weights",
        "a_ij = w_ij / z_i",
        r"a_{ij} = \frac{w_{ij}}{z_i}",
    ),
    "tau": Said(
        "tau",
        "the threshold of each query, such that its weights sum to 1",
        "τ_i with Σ_j a_ij = 1",
        r"\tau_i : \sum_j a_{ij} = 1",
    ),
    "support": Said(
        "support", "which keys lie above the threshold: only these get any weight", "s_ij > τ_i", r"s_{ij} > \tau_i"
    ),
    "above tau": Said("above tau", "by how much, and 0 below", "max(s_ij - τ_i, 0)", r"\max(s_{ij} - \tau_i, 0)"),
    "sparsemax": Said(
        "weights", "these are the weights already", "a_ij = max(s_ij - τ_i, 0)", r"a_{ij} = \max(s_{ij} - \tau_i, 0)"
    ),
    "power": Said("power", "the exponent", "p = 1 / (α - 1)", r"p = \frac{1}{\alpha - 1}"),
    "entmax": Said(
        "weights",
        "to the power of 1 / (α - 1): the weights",
        "a_ij = max(s_ij - τ_i, 0)^p",
        r"a_{ij} = \max(s_{ij} - \tau_i, 0)^p",
    ),
    "level of top": Said(
        "threshold",
        "a level between the $k largest scores of a row and the others; what ties is kept",
        "t_i",
        "t_i",
    ),
    "kept": Said(
        "kept",
        "the $k largest scores of each row; the others are hidden",
        "s_ij where s_ij ≥ t_i, -∞ elsewhere",
        r"s_{ij} \text{ where } s_{ij} \geq t_i, -\infty \text{ elsewhere}",
    ),
    "level of argmax": Said(
        "threshold", "a level just below the largest score of a row, between it and the next", "t_i", "t_i"
    ),
    "largest": Said("largest", "which keys score highest", "s_ij ≥ t_i", r"s_{ij} \geq t_i"),
    "argmax": Said(
        "weights",
        "all weight on the largest score; keys that tie share it",
        "a_ij = 1 / number of the largest",
        r"a_{ij} = \frac{[s_{ij} \geq t_i]}{\sum_l [s_{il} \geq t_i]}",
    ),
    "sigmoid": Said(
        "weights",
        "each score by itself, bent between 0 and 1; a row may sum to anything",
        "a_ij = 1 / (1 + exp(-s_ij))",
        r"a_{ij} = \sigma(s_{ij})",
    ),
    "positive": Said("positive", "what is above zero; the rest is 0", "max(s_ij, 0)", r"\max(s_{ij}, 0)"),
    "factor": Said("factor", "what every weight is multiplied with: 1 / n unless it is given", "c", "c"),
    "relu": Said(
        "weights",
        "times the factor: the weights; a row may sum to anything",
        "a_ij = c max(s_ij, 0)",
        r"a_{ij} = c \max(s_{ij}, 0)",
    ),
    "rows": Said("rows $turn", "each row divided by its sum", "a_ij / Σ_j a_ij", r"\frac{a_{ij}}{\sum_j a_{ij}}"),
    "columns": Said(
        "columns $turn", "each column divided by its sum", "a_ij / Σ_i a_ij", r"\frac{a_{ij}}{\sum_i a_{ij}}"
    ),
    "sinkhorn": Said(
        "weights", "each row divided by its sum: the weights", "a_ij / Σ_j a_ij", r"\frac{a_{ij}}{\sum_j a_{ij}}"
    ),
    "statistic": Said("$name", "the number of each row that its weights follow from", "$name", r"\text{$name}"),
    "own": Said("weights", "the weights that $name gives", "$formula", r"\text{$name}(S)"),
}

OUTPUTS = {
    "left in": Said(
        "left in",
        "which weights stay: each is left out with probability $dropout, decided by the seed $seed",
        "kept_ij",
        r"\kappa_{ij}",
    ),
    "after dropout": Said(
        "after dropout",
        "those that stay, over $rest, so that the sum is the same on average",
        "kept_ij a_ij / $rest",
        r"\frac{\kappa_{ij} a_{ij}}{$rest}",
    ),
    "output": Said(
        "output",
        "the values, each times its weight, added up: the answer to each query",
        "o_i = Σ_j a_ij v_j",
        "O = A V",
    ),
    "mixed": Said("mixed", "the values, each times its weight, added up", "Σ_j a_ij v_j", "A V"),
    "table": Said("table", "a vector of each distance, from far before the query to far after it", "t", "t"),
    "by distance": Said(
        "by distance",
        "the vectors of the distances, each times its weight, added up",
        "Σ_j a_ij t[clip(j - p)]",
        r"\sum_j a_{ij} t_{\mathrm{clip}(j - p)}",
    ),
    "output with a table": Said(
        "output",
        "both added: the answer to each query",
        "o_i = Σ_j a_ij (v_j + t[clip(j - p)])",
        r"o_i = \sum_j a_{ij} (v_j + t_{\mathrm{clip}(j - p)})",
    ),
}

"""All experiments, by name."""

from regard.errors import ArgumentError
from regard.theory.experiment import Experiment, Slider
from regard.theory.experiments.bottleneck import bottleneck
from regard.theory.experiments.complexity import complexity
from regard.theory.experiments.equivariance import equivariance
from regard.theory.experiments.gradient_flow import gradient_flow
from regard.theory.experiments.gradients import gradients
from regard.theory.experiments.heat_diffusion import heat_diffusion
from regard.theory.experiments.kernel_methods import kernel_methods
from regard.theory.experiments.rank_collapse import rank_collapse
from regard.theory.experiments.score_scaling import score_scaling
from regard.theory.experiments.shaped_attention import shaped_attention
from regard.theory.experiments.token_clustering import token_clustering

EXPERIMENTS = (
    Experiment(
        "score_scaling",
        "The variance of dot products grows with the head dimension, softmax saturates, and 1/√d prevents both.",
        score_scaling,
        (
            Slider("num_keys", "number of keys", 64, 8192, 64),
            Slider("num_samples", "number of dot products for each variance", 1000, 40_000, 1000),
            Slider("correlation", "correlation of dependent coordinates", 0.05, 0.9, 0.05),
        ),
        quick_settings={"num_keys": 256, "num_samples": 2000},
    ),
    Experiment(
        "equivariance",
        "Symmetries of attention, and checks that find layers which break them.",
        equivariance,
        (Slider("num_tokens", "sequence length", 6, 32, 1), Slider("embed_dim", "dimension of the vectors", 8, 64, 4)),
        quick_settings={"num_tokens": 8, "embed_dim": 8},
    ),
    Experiment(
        "gradients",
        "The backward pass in closed form, for every normalizer; the Jacobian of softmax; gradient paths in a stack.",
        gradients,
        (
            Slider("num_tokens", "number of queries and keys", 4, 64, 4),
            Slider("embed_dim", "dimension of the vectors", 4, 64, 4),
            Slider("query_scale", "factor of the queries", 0.1, 4.0, 0.1),
            Slider("num_layers", "number of layers", 1, 16, 1),
        ),
        quick_settings={"num_tokens": 8, "embed_dim": 8, "num_layers": 2},
    ),
    Experiment(
        "kernel_methods",
        "Scores as a kernel: spectra of one map and two, smoothing, Mercer, relations with an order, retrieval.",
        kernel_methods,
        (
            Slider("num_tokens", "number of points", 32, 128, 8),
            Slider("head_dim", "dimension of queries and keys", 2, 12, 1),
            Slider("length_scale", "length scale of the Gaussian kernel", 0.5, 3.0, 0.1),
            Slider("skew", "size of the antisymmetric part of the relation", 0.25, 2.0, 0.25),
            Slider("steps", "number of training steps", 200, 1000, 100),
        ),
        quick_settings={"num_tokens": 32, "head_dim": 3, "steps": 200},
    ),
    Experiment(
        "heat_diffusion",
        "Gaussian attention as diffusion: heat kernels, drift toward dense keys, the exact kernel of a graph.",
        heat_diffusion,
        (
            Slider("sigma", "σ of the Gaussian score", 0.1, 1.0, 0.05),
            Slider("key_std", "standard deviation of the keys", 0.5, 2.0, 0.1),
            Slider("dim", "dimension of the points", 1, 8, 1),
            Slider("time", "duration of the heat flow on the graph", 1.0, 16.0, 0.5),
        ),
        quick_settings={"time": 2.0},
    ),
    Experiment(
        "token_clustering",
        "Tokens that move by attention form long-lived clusters, which merge; their equations.",
        token_clustering,
        (
            Slider("num_tokens", "number of tokens", 4, 64, 1),
            Slider("beta", "β, the factor of the scores", 0.5, 12.0, 0.5),
            Slider("dim", "dimension: 2 is a circle, 3 a sphere", 2, 3, 1),
            Slider("time", "duration of the simulation", 3.0, 60.0, 1.0),
        ),
        quick_settings={"num_tokens": 6, "beta": 2.0, "time": 3.0},
    ),
    Experiment(
        "rank_collapse",
        "Attention without skip connections makes all tokens equal: differences shrink cubically per layer.",
        rank_collapse,
        (
            Slider("num_tokens", "sequence length", 2, 64, 1),
            Slider("num_heads", "heads per layer", 1, 8, 1),
            Slider("value_norm", "norm of the value matrix", 0.2, 0.9, 0.05),
            Slider("score_sharpness", "sharpness of the scores in the first layer", 0.5, 32.0, 0.5),
            Slider("num_layers", "number of layers", 8, 48, 1),
        ),
        quick_settings={"num_tokens": 8, "num_layers": 8},
    ),
    Experiment(
        "shaped_attention",
        "Attention with depth proportional to the width: drift and diffusion of the covariance of tokens.",
        shaped_attention,
        (
            Slider("embed_dim", "dimension of the vectors", 64, 512, 64),
            Slider("gamma_sq", "variance share of the attention branch, γ²", 0.1, 0.5, 0.05),
            Slider("temperature", "temperature of the shaped softmax, τ₀", 1.0, 3.0, 0.25),
            Slider("depth_to_width", "number of layers divided by embed_dim", 0.1, 0.5, 0.1),
            Slider("num_samples", "number of layers for the estimates of drift and diffusion", 4000, 40_000, 4000),
        ),
        quick_settings={"embed_dim": 64, "num_samples": 4000},
    ),
    Experiment(
        "gradient_flow",
        "Is attention a gradient flow? Unnormalized and doubly stochastic weights are, softmax is not.",
        gradient_flow,
        (
            Slider("num_tokens", "number of tokens", 2, 16, 1),
            Slider("dim", "dimension of the tokens", 1, 3, 1),
            Slider("max_norm", "largest norm of a token", 0.2, 1.2, 0.1),
            Slider("time", "duration of the simulation", 0.2, 4.0, 0.2),
        ),
        quick_settings={"num_tokens": 4, "max_norm": 0.8, "time": 0.5},
    ),
    Experiment(
        "complexity",
        "Counted FLOPs of every mechanism against its formula; sequential steps; where attention dominates.",
        complexity,
        (
            Slider("embed_dim", "dimension of the block", 8, 64, 8),
            Slider("num_tokens", "sequence length of the path lengths", 4, 256, 4),
            Slider("window", "size of the sliding window", 2, 16, 1),
            Slider("mechanism_stride", "every n-th mechanism is counted", 1, 8, 1),
        ),
        quick_settings={"embed_dim": 16, "num_tokens": 16, "mechanism_stride": 8},
    ),
    Experiment(
        "bottleneck",
        "The error of a fixed-size state as the sequence grows, and of attention over all tokens.",
        bottleneck,
        (
            Slider("state_dim", "dimension of the keys and of the encoder state", 4, 32, 4),
            Slider("value_dim", "dimension of a value", 2, 8, 1),
            Slider("logit_margin", "margin of the logits of attention, above log n", 1.0, 8.0, 0.5),
            Slider("num_samples", "number of random values", 200, 2000, 200),
        ),
        quick_settings={"state_dim": 8, "num_samples": 200},
    ),
)


def list_experiments() -> tuple[Experiment, ...]:
    """Return all experiments, in reading order.

    >>> len(list_experiments())
    11
    """
    return EXPERIMENTS


def get_experiment(name: str) -> Experiment:
    """Return the experiment with this name.

    >>> get_experiment("score_scaling").sliders[0].name
    'num_keys'
    """
    for experiment in EXPERIMENTS:
        if isinstance(name, str) and experiment.name == name:
            return experiment
    raise ArgumentError(f"name must be one of {', '.join(e.name for e in EXPERIMENTS)}; got {name!r}.")

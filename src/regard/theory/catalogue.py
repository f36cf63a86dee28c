"""Every experiment, by name."""

from regard.errors import SpecError
from regard.theory.bottleneck import bottleneck
from regard.theory.clustering import clustering
from regard.theory.collapse import collapse
from regard.theory.complexity import complexity
from regard.theory.equivariance import equivariance
from regard.theory.experiment import Experiment, Slider
from regard.theory.flow import flow
from regard.theory.gradients import gradients
from regard.theory.heat import heat
from regard.theory.kernels import kernels
from regard.theory.scaling import scaling
from regard.theory.shaped import shaped

EXPERIMENTS = (
    Experiment(
        "scaling",
        "Dot products spread with the width, softmax saturates, and 1/√d keeps both in place.",
        scaling,
        (
            Slider("keys", "keys that softmax runs over", 64, 8192, 64),
            Slider("samples", "products a variance is estimated from", 1000, 40_000, 1000),
            Slider("correlation", "of coordinates that are not independent", 0.05, 0.9, 0.05),
        ),
        quick={"keys": 256, "samples": 2000},
    ),
    Experiment(
        "equivariance",
        "What attention does not care about, and checks that find what a layer should not care about but does.",
        equivariance,
        (Slider("tokens", "of the texts", 6, 32, 1), Slider("width", "of the vectors", 8, 64, 4)),
        quick={"tokens": 8, "width": 8},
    ),
    Experiment(
        "gradients",
        "The backward pass written out, for every kind of weights; the Jacobian of softmax; the way back in a stack.",
        gradients,
        (
            Slider("tokens", "queries and keys", 4, 64, 4),
            Slider("width", "of the vectors", 4, 64, 4),
            Slider("sharpness", "what queries are multiplied by", 0.1, 4.0, 0.1),
            Slider("layers", "of the stack", 1, 16, 1),
        ),
        quick={"tokens": 8, "width": 8, "layers": 2},
    ),
    Experiment(
        "kernels",
        "Scores as a kernel: spectra of one map and two, smoothing, Mercer, relations with an order, retrieval.",
        kernels,
        (
            Slider("tokens", "points", 32, 128, 8),
            Slider("width", "of queries and keys", 2, 12, 1),
            Slider("length", "of the Gaussian kernel", 0.5, 3.0, 0.1),
            Slider("skew", "how much of the relation depends on the order", 0.25, 2.0, 0.25),
            Slider("steps", "of learning", 200, 1000, 100),
        ),
        quick={"tokens": 32, "width": 3, "steps": 200},
    ),
    Experiment(
        "heat",
        "Gaussian attention as diffusion: heat kernels, drift to where keys are dense, the exact kernel of a graph.",
        heat,
        (
            Slider("sigma", "of the Gaussian score", 0.1, 1.0, 0.05),
            Slider("spread", "of the keys", 0.5, 2.0, 0.1),
            Slider("width", "dimension of the points", 1, 8, 1),
            Slider("time", "how long heat flows on the graph", 1.0, 16.0, 0.5),
        ),
        quick={"time": 2.0},
    ),
    Experiment(
        "clustering",
        "Tokens that move by attention gather in groups, which live long and become one; the equations they obey.",
        clustering,
        (
            Slider("tokens", "that move", 4, 64, 1),
            Slider("beta", "how sharp scores are", 0.5, 12.0, 0.5),
            Slider("dimension", "2 is a circle, 3 a sphere", 2, 3, 1),
            Slider("time", "how long they are watched", 3.0, 60.0, 1.0),
        ),
        quick={"tokens": 6, "beta": 2.0, "time": 3.0},
    ),
    Experiment(
        "collapse",
        "Attention alone makes all tokens one, by the third power a layer; what skip connections change.",
        collapse,
        (
            Slider("tokens", "of the text", 2, 64, 1),
            Slider("heads", "of a layer", 1, 8, 1),
            Slider("gain", "the norm of the values' matrix", 0.2, 0.9, 0.05),
            Slider("sharpness", "of the scores in the first layer", 0.5, 32.0, 0.5),
            Slider("layers", "one after another", 8, 48, 1),
        ),
        quick={"tokens": 8, "layers": 8},
    ),
    Experiment(
        "shaped",
        "Attention in depth as large as the width: drift and diffusion of what tokens have in common.",
        shaped,
        (
            Slider("width", "of the vectors", 64, 512, 64),
            Slider("branch", "the share that comes through attention, γ²", 0.1, 0.5, 0.05),
            Slider("temperature", "of the shaped softmax, τ₀", 1.0, 3.0, 0.25),
            Slider("depth", "layers over the width", 0.1, 0.5, 0.1),
            Slider("samples", "layers that drift and diffusion are estimated from", 4000, 40_000, 4000),
        ),
        quick={"width": 64, "samples": 4000},
    ),
    Experiment(
        "flow",
        "Is attention a gradient flow? Raw and doubly normalised weights are, softmax is not.",
        flow,
        (
            Slider("tokens", "that move", 2, 16, 1),
            Slider("dimension", "of the space", 1, 3, 1),
            Slider("spread", "the length of the longest", 0.2, 1.2, 0.1),
            Slider("time", "how long they move", 0.2, 4.0, 0.2),
        ),
        quick={"tokens": 4, "spread": 0.8, "time": 0.5},
    ),
    Experiment(
        "complexity",
        "Counted work of every mechanism beside its formula; steps and paths; where attention overtakes the rest.",
        complexity,
        (
            Slider("width", "of the block", 8, 64, 8),
            Slider("tokens", "that a path leads over", 4, 256, 4),
            Slider("window", "tokens that a windowed layer sees", 2, 16, 1),
            Slider("every", "so manyth mechanism is counted", 1, 8, 1),
        ),
        quick={"width": 16, "tokens": 16, "every": 8},
    ),
    Experiment(
        "bottleneck",
        "What a memory of fixed size misses as a text grows, and attention over all of it does not.",
        bottleneck,
        (
            Slider("width", "of keys, and of the encoder", 4, 32, 4),
            Slider("numbers", "that a token has", 2, 8, 1),
            Slider("sharpness", "of attention, above log n", 1.0, 8.0, 0.5),
            Slider("samples", "of values", 200, 2000, 200),
        ),
        quick={"width": 8, "samples": 200},
    ),
)


def experiments() -> tuple[Experiment, ...]:
    """All of them, in the order in which they are best read."""
    return EXPERIMENTS


def experiment(name: str) -> Experiment:
    """The one of this name."""
    for each in EXPERIMENTS:
        if isinstance(name, str) and each.name == name:
            return each
    raise SpecError(f"an experiment must be one of {', '.join(e.name for e in EXPERIMENTS)}; got {name!r}.")

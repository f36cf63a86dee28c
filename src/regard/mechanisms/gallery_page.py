"""The page docs/gallery/index.md: the catalog as Markdown, which the site shows as cards with pictures."""

import re

from regard.argument_types import check_types
from regard.catalog_entry import Mechanism
from regard.mechanisms.registry import Catalog

CARDS_MARKER = "<!-- cards -->"  # the site replaces the rest of the page by cards
REPOSITORY = "../.."  # from the folder of the page
ARXIV = re.compile(r"arXiv (\d{4}\.\d{4,5})")

INTRODUCTION = f"""\
# Gallery of mechanisms

Every mechanism of regard on the same small input: its weights, its formula, its cost and its code. `regard mechanisms
--markdown` writes this page from [the catalog]({REPOSITORY}/src/regard/mechanisms/catalog.toml). [Choose a
mechanism](which-one.md) starts from your case. The pictures and filters are on the site, which `make docs` builds.

## The pictures

A picture shows 32 × 32 weights. Row i is query i, and column j is key j. The color is the square root of the weight:
the darkest blue is 1 or more, orange is negative, and a blank cell is a weight of exactly 0.

The input is the same for all: 32 tokens, each with a query and a key of dimension 16. A token has one of four topics,
and its query and key are the vector of the topic plus noise. Tokens of one topic therefore form squares.

```python
>>> from regard.mechanisms.weight_matrices import TOPICS, weight_matrix
>>> "".join("ABCD"[topic] for topic in TOPICS)
'AAAAABBBBAAACCCCCCBBBBBDDDDDAAAA'
>>> weight_matrix("sparsemax").shape, weight_matrix("sparsemax").sum(-1).round(decimals=12).unique().tolist()
(torch.Size([32, 32]), [1.0])
```

Each picture comes from a [call of the mechanism]({REPOSITORY}/src/regard/mechanisms/weight_matrices.py), with small
sizes, such as a window of 8 tokens, and with parameters drawn at random. A mechanism without a matrix of weights is
applied to the identity matrix as values. Its output is linear in the values, so this output is the matrix. Mechanisms
with one vector for each token, such as Reformer and the graphs, get the keys. Queries and keys of retention, gated
linear attention and the delta rule have the norm 1.

## The words

- **Exact**: regard computes the definition of the paper, up to rounding. The definition need not be softmax
  attention: linear attention is a different function of q, k and v.
- **Approximate**: the mechanism replaces softmax attention by something cheaper, and its result differs. regard
  computes the paper's method. The error depends on the input and on the sizes. The card says where the error vanishes,
  or how it falls.
- **Causal**: there is a form in which later tokens have no effect on earlier outputs, for language models.
  Block-sparse attention by scores, Reformer and the Routing Transformer have an option `causal` but not this
  property: later keys get no weight, but later tokens take part in the choice of blocks, buckets or clusters.
- **Linear time**: the time is proportional to the length n, for fixed other sizes; for graphs, to the number of
  edges.
- **Sparse**: some of the keys before a query have a weight of exactly 0.
- **Learned**: there are parameters besides the projections of queries, keys and values.

Time and memory are functions of the length n, or of n_q queries and n_k keys, and of the head dimension d. Memory is
counted beyond inputs and output. Other letters are sizes of the mechanism: w a window, c a chunk, b a block, l a
period, g global tokens, k chosen blocks or keys, r random blocks or hash rounds, m features, projections or
landmarks, C clusters, d_a hidden units, D a radius or, for axial attention, the number of axes.

The witness of a mechanism is the test that compares it with an independent implementation. The code on the cards runs
in the tests.
"""


@check_types
def to_markdown(entries: Catalog) -> str:
    """Return the page: the introduction, a table of all mechanisms, then each with its formula and example."""
    lines = [
        INTRODUCTION,
        CARDS_MARKER,
        "",
        "## All mechanisms",
        "",
        "| | idea | exact | time | memory |",
        "|---|---|---|---|---|",
    ]
    for family, members in entries.by_family():
        lines.append(f"| **{family}** | | | | |")
        for m in members:
            exact = "yes" if m.exact else "no"
            name = f"[{m.name}](#{anchor(m.name)})"
            lines.append(f"| {name} | {m.idea} | {exact} | {m.time_complexity} | {m.memory_complexity} |")
    for family, members in entries.by_family():
        lines += ["", f"## {family.capitalize()}"]
        for m in members:
            lines += _section(m)
    return "\n".join(lines) + "\n"


def anchor(heading: str) -> str:
    """Return the anchor of a heading, as GitHub and the site name it.

    >>> anchor("FAVOR+ (Performer)")
    'favor-performer'
    """
    return "".join(c for c in heading.lower().replace(" ", "-") if c.isalnum() or c in "-_")


def _section(m: Mechanism) -> list[str]:
    properties = ", ".join(name for name, holds in m.properties.items() if holds and name != "exact")
    return [
        *("", f"### {m.name}", "", m.idea, ""),
        *("```math", m.formula, "```", ""),
        f"- **Time** {m.time_complexity}, **memory** {m.memory_complexity}",
        f"- {exactness(m)}",
        *([f"- **Properties** {properties}"] if properties else []),
        f"- **Paper** {paper(m)}",
        f"- **Witness** {witness(m)}",
        *("", "```python", m.example.strip(), "```"),
    ]


def exactness(m: Mechanism) -> str:
    """Return in which way a mechanism is exact or approximate."""
    return f"**{'Exact' if m.exact else 'Approximate'}** {m.exactness}"


def paper(m: Mechanism) -> str:
    """Return the paper, with links to arXiv."""
    return ARXIV.sub(r"[arXiv \1](https://arxiv.org/abs/\1)", m.paper)


def witness(m: Mechanism) -> str:
    """Return a link to the reference test, and its note."""
    path, test = m.reference_test.split("::")
    return f"[`{test}`]({REPOSITORY}/{path}).{f' {m.note}' if m.note else ''}"

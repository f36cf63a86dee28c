"""Generate the pictures of the theory pages: `.venv/bin/python docs/theory/make.py [EXPERIMENT ...]`; default all."""

import sys
from pathlib import Path

from regard.plot.style import save_for_page
from regard.theory import get_experiment, list_experiments

HERE = Path(__file__).parent
MAX_PICTURE_BYTES = 200_000
PAGES = {
    "score_scaling": "scaling",
    "kernel_methods": "kernels",
    "heat_diffusion": "heat",
    "token_clustering": "clustering",
    "rank_collapse": "collapse",
    "shaped_attention": "shaped",
    "gradient_flow": "flow",
}  # pages with another name than their experiment


def main(names):
    for experiment in map(get_experiment, names) if names else list_experiments():
        result = experiment.run()
        assert result.is_consistent, str(result)
        path = HERE / f"{PAGES.get(experiment.name, experiment.name)}.png"
        save_for_page(result.plot(), path)
        size = path.stat().st_size
        assert size <= MAX_PICTURE_BYTES, f"{path.name} must be at most {MAX_PICTURE_BYTES:,} bytes, got {size:,}."


if __name__ == "__main__":
    main(sys.argv[1:])

"""Draw karate.png and miserables.png from their JSON files: `.venv/bin/python docs/training/make_graphs.py`."""

from panels import HERE, draw_curve, read_json

from regard.plot.style import CURVE_COLORS, PAGE_WIDTH_IN, apply_style, new_figure, save_for_page, set_title

NODES = {"karate": "members", "miserables": "characters"}
METHODS = {"accuracy": "graph\nattention", "label_propagation": "label\npropagation", "majority": "majority\nlabel"}


def picture(run, nodes):
    figure = new_figure(PAGE_WIDTH_IN, 2.9)
    curve, bars = figure.subplots(1, 2)
    draw_curve(curve, run, 1, "loss on labeled nodes", f"The loss falls to {run['curve'][-1][1]:.2f}")
    percentages = [100 * run["results"][name] for name in METHODS]
    others = [CURVE_COLORS[4]] * (len(METHODS) - 1)
    container = bars.barh(list(METHODS.values()), percentages, color=[CURVE_COLORS[0], *others], height=0.65)
    bars.bar_label(container, fmt="%.1f%%", padding=3)
    bars.invert_yaxis()
    bars.set(xlabel=f"accuracy on {nodes} (%)", xlim=(0, 125), xticks=[0, 50, 100], ylabel="method")
    bars.spines[["top", "right"]].set_visible(False)
    correct = round(run["results"]["accuracy"] * run["results"]["num_tested"])
    title = f"Graph attention labels {correct} of {run['results']['num_tested']:.0f} {nodes} correctly"
    set_title(bars, title, 2.2)
    return apply_style(figure)


if __name__ == "__main__":
    for name, nodes in NODES.items():
        save_for_page(picture(read_json(f"{name}.json"), nodes), HERE / f"{name}.png")

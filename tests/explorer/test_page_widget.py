"""The page in a notebook's cell: the same modules joined into one, whose questions are messages."""

from regard.explorer import pages
from tests.explorer.browser import HEAD, LAYER, Site, at, near, needs_chromium, settled, weights

pytestmark = needs_chromium

# What anywidget gives to `render`: an element, and a model that sends messages and gets answers with buffers. The
# kernel is stood in for by the server, whose answers are the same bytes.
CELL = """
const source = document.createElement("div");
const heard = [];
const model = {
  on: (name, listener) => heard.push(listener),
  off: (name, listener) => heard.splice(heard.indexOf(listener), 1),
  send: async ({ id, name, params }) => {
    const answer = await fetch(`ask/${name}`, { method: "POST", body: JSON.stringify(params) });
    const bytes = new Uint8Array(3 + Number(answer.headers.get("content-length")));
    bytes.set(new Uint8Array(await answer.arrayBuffer()), 3);
    const told = answer.ok ? { id } : { id, error: "refused" };
    for (const listener of heard) listener(told, answer.ok ? [new DataView(bytes.buffer, 3)] : []);
  },
};
document.body.replaceChildren(source);
window.heard = heard;
window.ended = page.default.render({ model, el: source });
"""


def test_a_cell_shows_the_page_and_asks_by_messages(site: Site) -> None:
    page = site.page("view=steps", bypass_csp=True)
    page.add_style_tag(content=pages.content("style.css").decode())
    page.add_script_tag(content=f"{pages.joined('widget.js')}\n{CELL}", type="module")
    page.locator(".regard-cell button.card").first.wait_for()
    page.locator(f"button.card[data-layer='{LAYER}'][data-head='{HEAD}']").click()
    settled(page)
    page.mouse.move(*at(page, 16, 5))
    settled(page)
    assert near(page.locator(".readout output").text_content(), float(weights()[16, 5]))
    assert page.get_by_role("button", name="Look", exact=True).count() == 0
    assert "view=map" not in page.url  # a notebook's address is not the cell's to change
    assert page.evaluate("window.heard.length") == 1
    page.evaluate("window.ended()")
    assert page.evaluate("window.heard.length") == 0

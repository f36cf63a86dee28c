"""The widget's page: the same modules bundled into one, with requests as messages to the kernel."""

from regard.explorer import bundle
from tests.chromium import needs_chromium
from tests.explorer.browser import HEAD, LAYER, Site, cell_center, is_close, wait_until_idle, weights

pytestmark = needs_chromium

# A stand-in for the arguments that anywidget passes to `render`. The server replaces the kernel: its responses have
# the same bytes, here at an odd offset of their buffer.
RENDER = """
const cell = document.createElement("div");
const listeners = [];
const model = {
  on: (name, listener) => listeners.push(listener),
  off: (name, listener) => listeners.splice(listeners.indexOf(listener), 1),
  send: async ({ id, name, params }) => {
    const response = await fetch(`api/${name}`, { method: "POST", body: JSON.stringify(params) });
    const bytes = new Uint8Array(3 + Number(response.headers.get("content-length")));
    bytes.set(new Uint8Array(await response.arrayBuffer()), 3);
    const message = response.ok ? { id } : { id, error: "refused" };
    for (const listener of listeners) listener(message, response.ok ? [new DataView(bytes.buffer, 3)] : []);
  },
};
document.body.replaceChildren(cell);
window.listeners = listeners;
window.dispose = page.default.render({ model, el: cell });
"""


def test_a_cell_shows_the_page_and_sends_requests_as_messages(site: Site) -> None:
    page = site.page("view=steps", bypass_csp=True)
    page.add_style_tag(content=bundle.read_frontend_file("styles/style.css").decode())
    page.add_script_tag(content=f"{bundle.bundle_script('app/widget-entry.js')}\n{RENDER}", type="module")
    page.locator(".regard-widget button.head-card").first.wait_for()
    page.locator(f"button.head-card[data-layer='{LAYER}'][data-head='{HEAD}']").click()
    wait_until_idle(page)
    page.mouse.move(*cell_center(page, 16, 5))
    wait_until_idle(page)
    assert is_close(page.locator(".readout output").text_content(), float(weights()[16, 5]))
    assert page.get_by_role("button", name="Run", exact=True).count() == 0
    assert "view=map" not in page.url  # the widget does not change the notebook's URL
    assert page.evaluate("window.listeners.length") == 1
    page.evaluate("window.dispose()")
    assert page.evaluate("window.listeners.length") == 0

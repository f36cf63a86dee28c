"""The data sources of the page, with responses that are late or out of order."""

from tests.chromium import needs_chromium
from tests.explorer.browser import Site

pytestmark = needs_chromium

LATE_PROGRESS = """async () => {
  const { RequestCache } = await import("./frontend/transport/request-cache.js");
  const wait = (time) => new Promise((done) => setTimeout(done, time));
  const request = async (name) => {
    await wait(name === "progress" ? 300 : 550); // requested after 400 ms, so the response comes after 700 ms
    return { values: { text: "half", fraction: 0.5 } };
  };
  const reports = [];
  await new RequestCache({ request }).requestWithProgress("run_model", {}, (text) => reports.push(text));
  await wait(400);
  return reports;
}"""

TWO_VIEWS = """async () => {
  const { widgetSource } = await import("./frontend/transport/widget-source.js");
  const listeners = [];
  const pack = (text) => {
    const header = new TextEncoder().encode(JSON.stringify({ values: { text }, arrays: [] }));
    const bytes = new Uint8Array(4 + header.length);
    new DataView(bytes.buffer).setUint32(0, header.length, true);
    bytes.set(header, 4);
    return new DataView(bytes.buffer);
  };
  const respond = ({ id, name }) => listeners.forEach((listener) => listener({ id }, [pack(`response to ${name}`)]));
  const model = {
    on: (_, listener) => listeners.push(listener),
    send: (message) => setTimeout(() => respond(message), message.name === "first" ? 60 : 0),
  };
  const sources = [widgetSource(model), widgetSource(model)];
  const responses = await Promise.all([sources[0].request("first", {}), sources[1].request("second", {})]);
  return responses.map(({ values }) => values.text);
}"""


def test_progress_is_not_reported_after_the_response(site: Site) -> None:
    assert site.page("view=steps").evaluate(LATE_PROGRESS) == []


def test_two_views_of_one_widget_get_their_own_responses(site: Site) -> None:
    assert site.page("view=steps").evaluate(TWO_VIEWS) == ["response to first", "response to second"]

"""Who answers the page, with answers that come late, in another order, or not at all."""

from tests.explorer.browser import Site, needs_chromium

pytestmark = needs_chromium

LATE = """async () => {
  const { Asking } = await import("./static/asking.js");
  const wait = (time) => new Promise((done) => setTimeout(done, time));
  const ask = async (name) => {
    await wait(name === "progress" ? 300 : 550); // asked for after 400, answered after 700
    return { values: { text: "half", share: 0.5 } };
  };
  const told = [];
  await new Asking({ ask }).slowly("run", {}, (text) => told.push(text));
  await wait(400);
  return told;
}"""

TWO_VIEWS = """async () => {
  const { widgetSource } = await import("./static/source.js");
  const heard = [];
  const packed = (text) => {
    const header = new TextEncoder().encode(JSON.stringify({ values: { text }, arrays: [] }));
    const bytes = new Uint8Array(4 + header.length);
    new DataView(bytes.buffer).setUint32(0, header.length, true);
    bytes.set(header, 4);
    return new DataView(bytes.buffer);
  };
  const model = {
    on: (_, listener) => heard.push(listener),
    send: ({ id, name }) => heard.forEach((listen) => listen({ id }, [packed(`to ${name}`)])),
  };
  const sources = [widgetSource(model), widgetSource(model)];
  model.send = ((send) => (message) => setTimeout(() => send(message), message.name === "one" ? 60 : 0))(model.send);
  const answers = await Promise.all([sources[0].ask("one", {}), sources[1].ask("two", {})]);
  return answers.map((answer) => answer.values.text);
}"""


def test_how_far_a_question_was_is_not_told_after_its_answer(site: Site) -> None:
    assert site.page("view=steps").evaluate(LATE) == []


def test_two_views_of_one_widget_get_their_own_answers(site: Site) -> None:
    assert site.page("view=steps").evaluate(TWO_VIEWS) == ["to one", "to two"]

// Which two recordings are compared: those that are there, or another text that a model reads first.

import { element, refill, select } from "./element.js";
import { fitting, shownOf } from "./subject.js";

const LONGEST = 2000; // letters that are put into the form

/** Fills the form. @param {HTMLFormElement} form @param {Object|null} other the second recording, if there is one */
export function drawPair(context, form, other) {
  const { store, source } = context;
  const state = store.get();
  const options = (not) =>
    state.world.shown.filter((each) => each.id !== not).map((each) => [each.id, `${each.id}: ${each.title}`]);
  const show = (id) => store.set({ shown: Number(id), ...fitting({ ...state, shown: Number(id) }) });
  const field = (words, list) => element("label", { class: "field" }, words, list);
  refill(
    form,
    field("One ", select("One", options(null), state.shown, show)),
    other
      ? field(
          "the other ",
          select("The other", options(state.shown), other.id, (id) => store.set({ other: Number(id) })),
        )
      : null,
    source.kind === "server" ? another(context, form) : null,
  );
}

/** Another text, and the model that reads it. */
function another(context, form) {
  const state = context.store.get();
  const shown = shownOf(state);
  const text = element("input", {
    type: "text",
    placeholder: "Another text",
    "aria-label": "Another text",
    class: "wide-input",
    value: shown.text?.slice(0, LONGEST) ?? "",
  });
  const names = state.world.models.map((each) => [each.name, each.name]);
  const model = select("Model of the other text", names, shown.model, () => {});
  const go = element("button", { type: "submit", class: "primary" }, "Compare");
  form.onsubmit = async (event) => {
    event.preventDefault();
    go.disabled = true;
    try {
      const { values } = await context.asking.slowly("run", { text: text.value, model: model.value }, context.status);
      await context.refresh({ other: values.id });
    } catch (error) {
      context.fail(error);
    } finally {
      go.disabled = false;
      context.status("");
    }
  };
  return [text, model, go];
}

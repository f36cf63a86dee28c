// A text is read by a model, and shown.

/** Lets a model read a text, in place of what is shown. */
export async function run(context, text, model) {
  const { shown, world } = context.store.get();
  const into = world?.shown.some((each) => each.id === shown) ? { into: shown } : {};
  const tell = (words, share) => context.status(words, share);
  context.status("the model reads", null);
  try {
    const { values } = await context.asking.slowly("run", { text, model, ...into }, tell);
    await context.refresh({ shown: values.id, query: null, key: null, hover: null, locked: [], heads: null, place: null, step: null, from: 0, scale: "auto" });
  } finally {
    context.status("");
  }
}

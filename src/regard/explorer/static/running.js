// A text is read by a model, and shown.

/** Lets a model read a text; in place of what is shown if this page made it, since other pages may look at the rest. */
export async function run(context, text, model) {
  const { shown } = context.store.get();
  const into = context.made.has(shown) ? { into: shown } : {};
  const tell = (words, share) => context.status(words, share);
  context.runs += 1;
  const mine = context.runs;
  context.status("the model reads", null);
  try {
    const { values } = await context.asking.slowly("run", { text, model, ...into }, tell);
    context.made.add(values.id);
    if (mine !== context.runs) return; // somebody has asked for another text since
    await context.refresh({
      shown: values.id,
      query: null,
      key: null,
      hover: null,
      locked: [],
      heads: null,
      place: null,
      step: null,
      from: 0,
      scale: "auto",
    });
  } finally {
    if (mine === context.runs) context.status("");
  }
}

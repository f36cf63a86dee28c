// A text is read by a model, and shown.

const BEGINNING = {
  query: null,
  key: null,
  hover: null,
  locked: [],
  heads: null,
  place: null,
  step: null,
  from: 0,
  scale: "auto",
};

/**
 * Lets a model read a text and shows it. A text that it has read already is shown at once.
 * @param {() => Object} [patch] what else is chosen, made when the text is shown
 */
export async function run(context, text, model, patch = () => ({})) {
  const isRead = (each) => each.text === text && each.model === model && !each.generated;
  if (context.store.get().world?.shown.some(isRead)) {
    const { values: world } = await context.ask("state", {}); // the server may have dropped it since
    const known = world.shown.find(isRead);
    if (known) {
      context.runs += 1; // a text that is still being read is no longer meant
      context.status("");
      context.show(world, { ...BEGINNING, ...patch(), shown: known.id });
      context.answered(true);
      return;
    }
  }
  await readNew(context, text, model, patch);
}

async function readNew(context, text, model, patch) {
  const tell = (words, share) => context.status(words, share);
  context.runs += 1;
  const mine = context.runs;
  context.status("the model reads", null);
  try {
    const { values } = await context.asking.slowly("run", { text, model }, tell);
    if (mine !== context.runs) return; // somebody has asked for another text since
    await context.refresh({ ...BEGINNING, ...patch(), shown: values.id });
  } finally {
    if (mine === context.runs) context.status("");
  }
}

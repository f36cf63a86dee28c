// Curves of cost for some mechanisms, taken from those of all: for a file, which holds these for some sizes of models.

/** The answer to `cost`; null if it is another question, or about a size that is not held. */
export async function fromCurves(held, name, params) {
  if (name !== "cost") return null;
  const names = await held("cost_names", {});
  const mechanisms = names?.values.mechanisms.map((each) => each.name);
  const all = mechanisms && (await held("cost", { ...params, mechanisms }));
  if (!all) return null;
  const { curves, crossings, rest, ...values } = all.values;
  const isChosen = (each) => each === rest.name || params.mechanisms.includes(each);
  return {
    values: {
      ...values,
      rest,
      curves: curves.filter((curve) => isChosen(curve.name)),
      crossings: crossings.filter(({ one, other }) => isChosen(one) && isChosen(other)),
    },
    arrays: {},
  };
}

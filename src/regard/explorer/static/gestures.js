// Hands on a map: wheel, drag, pinch and keys, told as zooming, panning, pointing and picking.

const SLIP = 4; // pixels that a click may move

/**
 * @param {HTMLElement} node
 * @param {{zoom: Function, pan: Function, point: Function, pick: Function, open: Function, step: Function, fit: Function}} does
 */
export function listenToHands(node, does) {
  const fingers = new Map();
  let moved = 0;
  const at = (event) => {
    const box = node.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  node.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      const lines = event.deltaMode === 1 ? 20 : 1;
      does.zoom(Math.exp(-event.deltaY * lines * (event.ctrlKey ? 0.01 : 0.0018)), ...at(event));
      does.point(...at(event)); // another cell lies under the cursor now
    },
    { passive: false },
  );
  node.addEventListener("pointerdown", (event) => {
    node.setPointerCapture(event.pointerId);
    if (!fingers.size) moved = 0;
    fingers.set(event.pointerId, at(event));
  });
  node.addEventListener("pointermove", (event) => {
    const now = at(event);
    if (!fingers.has(event.pointerId)) return does.point(...now);
    const before = spread(fingers);
    const old = fingers.get(event.pointerId);
    fingers.set(event.pointerId, now);
    const after = spread(fingers);
    moved += Math.hypot(now[0] - old[0], now[1] - old[1]);
    if (moved < SLIP) return undefined;
    does.pan(after.x - before.x, after.y - before.y);
    if (fingers.size > 1 && before.size > 0) does.zoom(after.size / before.size, after.x, after.y);
    return undefined;
  });
  const lift = (event) => {
    const here = fingers.delete(event.pointerId);
    if (event.type === "pointerup" && here && moved < SLIP && !fingers.size) does.pick(...at(event));
  };
  node.addEventListener("pointerup", lift);
  node.addEventListener("pointercancel", lift);
  node.addEventListener("pointerleave", () => {
    if (!fingers.size) does.point(-1, -1);
  });
  node.addEventListener("dblclick", (event) => does.open(...at(event)));
  node.addEventListener("keydown", (event) => pressed(event, does));
}

/** The middle of the fingers and how far they are from it. */
function spread(fingers) {
  const all = [...fingers.values()];
  const x = all.reduce((sum, p) => sum + p[0], 0) / all.length;
  const y = all.reduce((sum, p) => sum + p[1], 0) / all.length;
  return { x, y, size: all.reduce((sum, p) => sum + Math.hypot(p[0] - x, p[1] - y), 0) };
}

const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

function pressed(event, does) {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  if (STEPS[event.key]) does.step(...STEPS[event.key].map((n) => n * (event.shiftKey ? 10 : 1)));
  else if (event.key === "+" || event.key === "=") does.zoom(1.6);
  else if (event.key === "-") does.zoom(1 / 1.6);
  else if (event.key === "0") does.fit();
  else if (event.key === "Enter") does.open();
  else return;
  event.preventDefault();
}

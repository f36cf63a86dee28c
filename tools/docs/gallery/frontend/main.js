// Starts the filters of the gallery: buttons that combine, whose choice is in the address.

import { hasProperties, toggleProperty } from "../../../../src/regard/explorer/frontend/views/gallery/properties.js";
import { formatFilters, parseFilters } from "./filters.js";

export function startGallery() {
  const bar = document.querySelector(".gallery-filters");
  if (!(bar instanceof HTMLElement)) return;
  const buttons = [.../** @type {NodeListOf<HTMLButtonElement>} */ (bar.querySelectorAll("[data-property]"))];
  const known = buttons.map((button) => button.dataset.property ?? "");
  /** @type {string[]} */
  let selected = [];

  /** @param {string[]} next */
  const select = (next) => {
    selected = next;
    for (const button of buttons)
      button.setAttribute("aria-pressed", String(selected.includes(button.dataset.property ?? "")));
    showCards(bar, selected);
  };
  /** @param {string[]} next */
  const selectAndStore = (next) => {
    select(next);
    history.replaceState(null, "", formatFilters(next) || location.pathname + location.search);
  };
  const readAddress = () => {
    const fromAddress = parseFilters(location.hash, known);
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (fromAddress) select(fromAddress);
    else if (target?.closest("[hidden]")) {
      select([]); // a link to a card that is not shown
      target.scrollIntoView();
    }
  };

  for (const [n, button] of buttons.entries())
    button.onclick = () => selectAndStore(toggleProperty(known, selected, known[n]));
  const showAll = bar.querySelector(".show-all");
  if (showAll instanceof HTMLElement) showAll.onclick = () => selectAndStore([]);
  addEventListener("hashchange", readAddress);
  bar.hidden = false;
  select([]);
  readAddress();
}

/**
 * Shows the cards with the selected properties, and the families with a card.
 * @param {HTMLElement} bar
 * @param {string[]} selected
 */
function showCards(bar, selected) {
  let count = 0;
  for (const family of document.querySelectorAll(".mechanism-cards")) {
    const cards = /** @type {HTMLElement[]} */ ([...family.children]);
    for (const card of cards) setHidden(card, !hasProperties((card.dataset.properties ?? "").split(" "), selected));
    const numShown = cards.filter((card) => !card.hidden).length;
    setHidden(family, numShown === 0);
    setHidden(family.previousElementSibling, numShown === 0);
    count += numShown;
  }
  const status = bar.querySelector("[role=status]");
  if (status) status.textContent = `${count} of ${bar.dataset.total} mechanisms`;
}

/**
 * Hides or shows a card or a heading, and the entry of its heading in the table of contents.
 * @param {Element | null} node
 * @param {boolean} hidden
 */
function setHidden(node, hidden) {
  if (!(node instanceof HTMLElement)) return;
  node.hidden = hidden;
  const id = node.id || node.querySelector(":scope > h3")?.id;
  const entry = id ? document.querySelector(`.md-nav--secondary a[href="#${CSS.escape(id)}"]`)?.parentElement : null;
  if (entry) entry.hidden = hidden;
}

/* Elements, and figures in words. Text enters the page as text, never as markup. */

export const byId = (id) => document.getElementById(id);

/** An element. `attributes` are set as they are; children are elements or strings. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

/** Tell a screen reader, without showing it. */
export function say(text) {
  byId("said").textContent = text;
}

/** A horizontal bar; `share` of its full length is 0 to 1. */
export function bar(share) {
  const inner = make("span", { class: "bar-fill" });
  inner.style.width = `${100 * Math.min(1, Math.max(0, share))}%`;
  return make("span", { class: "bar", "aria-hidden": "true" }, inner);
}

const known = (value) => typeof value === "number" && Number.isFinite(value);

/** A number with about three digits, or a dash where there is none. */
export function digits(value) {
  if (!known(value)) return "–";
  if (value === 0) return "0";
  const places = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return value.toFixed(places);
}

export const percent = (share) => (known(share) ? `${Math.round(100 * share)}%` : "–");

export const perSecond = (value) => `${digits(value)} tokens/s`;

/** 1 token, 2 tokens. */
export const count = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;

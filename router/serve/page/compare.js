/* The same question answered by plain decoding, beside the answer that is there. */

import { Answer } from "./answer.js";
import { bar, digits, make, perSecond, say } from "./dom.js";

export const PLAIN = "autoregressive";

/** Add the plain answer to `place`, and both speeds. `greedy`: both texts should be the same. */
export async function compare(answer, body, { place, signal, greedy, changed }) {
  const plain = new Answer("Answer of plain decoding, token by token");
  const speeds = make("ul", { class: "bars speeds", "aria-label": "Tokens a second" });
  const verdict = make("p", { class: "verdict" });
  place.replaceChildren(
    make("h4", {}, "Compared with plain decoding"),
    speeds,
    verdict,
    make("h4", {}, "The plain answer"),
    plain.tokens.element,
    plain.facts,
  );
  const draw = () => {
    const most = Math.max(answer.perSecond, plain.perSecond, 1e-9);
    const rows = [[answer.choice.arm, answer.perSecond], [PLAIN, plain.perSecond]];
    speeds.replaceChildren(...rows.map(([name, speed]) => row(name, speed, speed / most)));
    changed();
  };
  draw();
  await plain.run({ ...body, model: PLAIN }, signal, draw);
  verdict.textContent = `${ratio(answer, plain)} ${sameness(answer, plain, greedy)}`;
  say(verdict.textContent);
}

function row(name, speed, share) {
  return make(
    "li",
    {},
    make("span", { class: "name" }, name),
    bar(share),
    make("span", { class: "value" }, speed ? perSecond(speed) : "reading"),
  );
}

function ratio(answer, plain) {
  if (!answer.perSecond || !plain.perSecond) return "The server gave no times.";
  const times = answer.perSecond / plain.perSecond;
  return `${answer.choice.arm} was ${digits(times)} times as fast as plain decoding.`;
}

function sameness(answer, plain, greedy) {
  if (answer.tokens.text === plain.tokens.text) return "Both answers are the same.";
  if (!greedy) return "The answers differ because they are sampled.";
  return "The answers differ: near-ties can fall either way in low precision.";
}

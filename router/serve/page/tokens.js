/* An answer's text, a span a token. Pointing at a token, or moving to it, shows its round. */

import { byId, count, make } from "./dom.js";

const WRITERS = {
  draft: { kind: "draft", says: "drafted and accepted" },
  target: { kind: "target", says: "written by the target" },
  bonus: { kind: "bonus", says: "the target's bonus after a draft that stood whole" },
};

export class Tokens {
  constructor(label) {
    this.element = make("div", { class: "tokens", role: "group", "aria-label": label });
    this.text = "";
    this.rounds = [];
    const on = (event, does) => this.element.addEventListener(event, does);
    on("pointerover", (event) => this.#show(event.target));
    on("pointerleave", () => this.#hide());
    on("focusin", (event) => this.#show(event.target));
    on("focusout", () => this.#hide());
    on("keydown", (event) => this.#move(event));
  }

  /** A chunk: `content` is the text it adds, `round` the field `draftpick`, where it has one. */
  add(content, round) {
    this.text += content;
    if (!round?.tokens?.length) {
      if (content) this.element.append(content);
      return;
    }
    const spans = [];
    this.rounds.push({ ...round, spans });
    for (const [token, text] of pieces(round.tokens, content)) {
      if (!text) continue; // the end of the answer, or part of a character
      const kind = WRITERS[token.by]?.kind ?? "target";
      const span = make("span", { class: `token ${kind}`, tabindex: "-1" }, text);
      span.dataset.round = this.rounds.length - 1;
      span.dataset.by = kind;
      spans.push(span);
    }
    if (!this.element.querySelector(".token")) spans[0]?.setAttribute("tabindex", "0");
    this.element.append(...spans);
  }

  #show(span) {
    if (!span.classList.contains("token")) return;
    this.#hide();
    const number = Number(span.dataset.round);
    const round = this.rounds[number];
    for (const other of round.spans) other.classList.add("same-round");
    const tip = byId("round");
    tip.replaceChildren(
      make("b", {}, `“${visible(span.textContent)}”`),
      ` ${WRITERS[span.dataset.by].says}`,
      make("br"),
      `Round ${number + 1}: ${story(round)}`,
    );
    tip.hidden = false;
    span.setAttribute("aria-describedby", tip.id);
    place(tip, span);
  }

  #hide() {
    byId("round").hidden = true;
    for (const span of this.element.querySelectorAll(".same-round")) {
      span.classList.remove("same-round");
      span.removeAttribute("aria-describedby");
    }
  }

  /** One stop for the Tab key, arrows within. */
  #move(event) {
    const spans = [...this.element.querySelectorAll(".token")];
    const here = spans.indexOf(event.target);
    const there = {
      ArrowRight: here + 1,
      ArrowLeft: here - 1,
      Home: 0,
      End: spans.length - 1,
    }[event.key];
    if (event.key === "Escape") this.#hide();
    if (here < 0 || !spans[there]) return;
    event.preventDefault();
    spans[here].setAttribute("tabindex", "-1");
    spans[there].setAttribute("tabindex", "0");
    spans[there].focus();
  }
}

/** Each token with its text. What is shown is the content: stop strings are cut from it, and a
 * character of several tokens comes with the last of them. */
function pieces(tokens, content) {
  if (tokens.map((token) => token.text).join("") === content) {
    return tokens.map((token) => [token, token.text]);
  }
  let rest = content;
  return tokens.map((token, i) => {
    const last = i === tokens.length - 1;
    const text = last ? rest : rest.startsWith(token.text) ? token.text : "";
    rest = rest.slice(text.length);
    return [token, text];
  });
}

function story({ drafted, tokens }) {
  const by = (kind) => tokens.filter((token) => token.by === kind).length;
  const own = by("target");
  if (!drafted) return `nothing drafted, ${count(own, "token")} by the target.`;
  const accepted = by("draft");
  const stood = accepted >= drafted ? "all accepted" : `${accepted} accepted`;
  const then = by("bonus") ? ", then a bonus token" : own ? ", then the target's own" : "";
  return `${drafted} drafted, ${stood}${then}.`;
}

const visible = (text) => text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣");

/** Below the token, or above it where the window ends; never beyond its sides. */
function place(tip, span) {
  const at = span.getClientRects()[0];
  const { width, height } = tip.getBoundingClientRect();
  const room = document.documentElement.clientWidth - width - 8;
  const below = at.bottom + 6 + height < window.innerHeight - 8;
  tip.style.left = `${Math.max(8, Math.min(at.left, room))}px`;
  tip.style.top = `${below ? at.bottom + 6 : at.top - height - 6}px`;
}

/* One answer as it streams: its tokens, its speed, and the arm that wrote it. */

import { complete } from "./api.js";
import { bar, count, digits, make, percent, perSecond } from "./dom.js";
import { Tokens } from "./tokens.js";

export class Answer {
  constructor(label) {
    this.tokens = new Tokens(label);
    this.facts = make("p", { class: "facts soft" });
    this.speed = make("p", { class: "speed" });
    this.choice = null; // the first chunk's field `draftpick`
    this.written = 0; // tokens
    this.seconds = 0; // since the request came, by the server's clock
    this.finish = null;
  }

  /** Stream into the elements; `changed` is called after every chunk. */
  async run(body, signal, changed) {
    for await (const chunk of complete(body, signal)) {
      const { delta, finish_reason: finish } = chunk.choices?.[0] ?? {};
      const said = chunk.draftpick;
      if (said?.arm) this.choice = said;
      this.tokens.add(delta?.content ?? "", said);
      this.written += said?.tokens?.length ?? 0;
      this.seconds = said?.elapsed_s ?? this.seconds;
      this.finish = finish ?? this.finish;
      if (chunk.usage) this.written = chunk.usage.completion_tokens ?? this.written;
      this.speed.textContent = this.perSecond ? perSecond(this.perSecond) : "";
      if (chunk.metrics) this.#tell(chunk.metrics.speculative_decoding ?? {});
      changed(this);
    }
  }

  get perSecond() {
    return this.seconds > 0 ? this.written / this.seconds : 0;
  }

  #tell(metrics) {
    const { mean_acceptance_length: length, draft_acceptance_rate: rate } = metrics;
    const done = `${count(this.written, "token")} in ${count(this.tokens.rounds.length, "round")}`;
    const parts = [`${done} and ${digits(this.seconds)} s, reading the question included`];
    if (metrics.num_draft_tokens > 0) {
      parts.push(`acceptance rate ${percent(rate)}`);
      parts.push(`mean acceptance length ${digits(length)}`);
    }
    const { running } = this.choice ?? {};
    if (running > 0) parts.push(`with ${count(running, "other request")}`);
    if (this.finish === "length") parts.push("cut at max tokens");
    this.facts.textContent = parts.join(" · ");
  }
}

/** The arm, its probability, and the scores of all as bars, the best first; of an arm that was
 * asked for by name there are none. */
export function choiceView({ arm, propensity, policy, scores }) {
  const ranked = Object.entries(scores ?? {}).sort((one, other) => other[1] - one[1]);
  const how = ranked.length ? `picked with probability ${percent(propensity)}` : "asked for by name";
  const summary = ["Arm: ", make("b", { class: "arm" }, arm), `, ${how}`];
  if (!ranked.length) return make("p", { class: "choice" }, ...summary);
  const values = ranked.map(([, score]) => score);
  const [low, high] = [Math.min(0, ...values), Math.max(0, ...values)];
  const rows = ranked.map(([name, score]) =>
    make(
      "li",
      { class: name === arm ? "picked" : "" },
      make("span", { class: "name" }, name, name === arm ? make("small", {}, " picked") : null),
      bar((score - low) / (high - low || 1)),
      make("span", { class: "value" }, digits(score)),
    ),
  );
  const title = policy ? `Scores by the policy ${policy}` : "Scores by the policy";
  return make(
    "details",
    { class: "choice" },
    make("summary", {}, ...summary),
    make("p", { class: "soft" }, title),
    make("ol", { class: "bars" }, ...rows),
  );
}

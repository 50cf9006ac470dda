/* The conversation: ask, stream, stop, try again, compare. */

import { Answer, choiceView } from "./answer.js";
import { Refused } from "./api.js";
import { PLAIN, compare } from "./compare.js";
import { byId, make, perSecond, say } from "./dom.js";

const EXAMPLES = [
  "Why do leaves turn red in autumn?",
  "Translate to English: Der Zug nach Hamburg hat heute zwanzig Minuten Verspätung.",
  "A baker sells 12 rolls an hour for 7 hours. How many is that?",
  "Write the numbers from one to twenty as words.",
];

const turns = []; // {question, text}: what the model is told of the conversation
let usual = { temperature: 0 }; // what the server takes where a request says nothing
let running = null; // the AbortController of the answer that streams

export function startChat() {
  byId("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    ask(byId("question").value);
  });
  byId("question").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!running) byId("ask").requestSubmit();
  });
  byId("stop").addEventListener("click", () => running?.abort());
  byId("anew").addEventListener("click", anew);
  byId("marks").addEventListener("change", (event) => {
    document.body.classList.toggle("unmarked", !event.target.checked);
  });
  byId("examples").append(
    ...EXAMPLES.map((text) => make("button", { type: "button", click: () => ask(text) }, text)),
  );
}

/** The arms that may be asked for; `auto` is always there. */
export function offer(models) {
  const chosen = byId("model").value;
  const arms = models.filter((name) => name !== "auto");
  const auto = make("option", { value: "auto" }, "auto: the policy picks");
  byId("model").replaceChildren(auto, ...arms.map((name) => make("option", { value: name }, name)));
  byId("model").value = arms.includes(chosen) ? chosen : "auto";
}

/** The server's own settings stand in fields that are empty. */
export function suggest(limits) {
  usual = limits;
  byId("temperature").placeholder = limits.temperature;
  byId("max-tokens").placeholder = byId("max-tokens").max = limits.most_tokens;
}

/** The number in a field; undefined, which is not sent, where it is empty. */
function numberIn(name) {
  return byId(name).value === "" ? undefined : byId(name).valueAsNumber;
}

function anew() {
  running?.abort();
  turns.length = 0;
  byId("conversation").replaceChildren();
  byId("welcome").hidden = false;
  byId("question").focus();
}

function ask(question) {
  const settings = ["temperature", "max-tokens"].map(byId);
  if (running || !question.trim()) return;
  if (!settings.every((field) => field.checkValidity())) {
    byId("settings").open = true;
    settings.forEach((field) => field.reportValidity());
    return;
  }
  byId("question").value = "";
  byId("welcome").hidden = true;
  for (const shown of document.querySelectorAll("details.choice[open]")) shown.open = false;
  const system = byId("system").value.trim();
  const messages = [
    ...(system ? [{ role: "system", content: system }] : []),
    ...turns.flatMap(({ question, text }) => [
      { role: "user", content: question },
      { role: "assistant", content: text },
    ]),
    { role: "user", content: question },
  ];
  const body = {
    model: byId("model").value,
    messages,
    temperature: numberIn("temperature"),
    max_tokens: numberIn("max-tokens"),
  };
  const article = make("article", {});
  byId("conversation").append(make("h3", { class: "question" }, question), article);
  document.scrollingElement.scrollTop = document.scrollingElement.scrollHeight;
  reply(article, question, body);
}

/** Stream an answer into the article; a refusal leaves a button to try again. */
async function reply(article, question, body) {
  const answer = new Answer("Answer, token by token");
  const choice = make("div", {});
  const below = make("div", { class: "below" });
  article.replaceChildren(choice, answer.tokens.element, answer.speed, answer.facts, below);
  article.classList.add("waiting");
  const changed = () => {
    if (answer.choice && !choice.hasChildNodes()) {
      choice.append(choiceView(answer.choice));
      for (const shown of choice.querySelectorAll("details")) shown.open = true;
    }
    article.classList.remove("waiting");
  };
  say("Asked.");
  const ended = await guarded(article, below, {
    work: (signal) => answer.run(body, signal, changed),
    again: () => reply(article, question, body),
  });
  article.classList.remove("waiting");
  if (ended === "anew" || ended === "refused") return;
  if (answer.tokens.text) turns.push({ question, text: answer.tokens.text });
  if (ended === "stopped") return;
  say(`${answer.choice?.arm ?? ""} answered, ${perSecond(answer.perSecond)}.`);
  if (answer.choice && answer.choice.arm !== PLAIN) {
    below.append(compareButton(article, below, answer, body));
    follow();
  }
}

function compareButton(article, below, answer, body) {
  const click = () => {
    if (running) return;
    const place = make("div", { class: "comparison" });
    const greedy = (body.temperature ?? usual.temperature) === 0;
    below.replaceChildren(place);
    guarded(article, below, {
      work: (signal) => compare(answer, body, { place, signal, greedy, changed: follow }),
      again: click,
    });
  };
  return make("button", { type: "button", class: "compare", click }, "Compare with plain decoding");
}

/** Run one request at a time. "whole", "stopped", "refused", or "anew" where it is gone. */
async function guarded(article, below, { work, again }) {
  running = new AbortController();
  const mine = running;
  busy(true);
  const following = setInterval(follow, 100);
  let ended = "whole";
  try {
    await work(mine.signal);
  } catch (error) {
    ended = error.name === "AbortError" ? "stopped" : "refused";
    if (ended === "stopped") {
      below.append(make("p", { class: "soft" }, "Stopped."));
      say("Stopped.");
    } else {
      below.append(refusal(error, again));
      if (!(error instanceof Refused)) reportError(error);
    }
  } finally {
    clearInterval(following);
    if (running === mine) running = null;
    busy(running !== null);
    follow();
  }
  return article.isConnected ? ended : "anew";
}

function refusal(error, again) {
  const note = make("p", { class: "notice", role: "alert" }, error.message, " ");
  const click = () => running ?? again();
  const button = make("button", { type: "button", class: "again", click }, "Try again");
  note.append(button);
  if (error.retryAfter) wait(button, error.retryAfter);
  return note;
}

/** The server named a time: the button waits for it. */
function wait(button, seconds) {
  button.disabled = seconds > 0;
  button.textContent = seconds > 0 ? `Try again in ${seconds} s` : "Try again";
  if (seconds > 0) setTimeout(() => wait(button, seconds - 1), 1000);
}

function busy(now) {
  if (now && document.activeElement === byId("send")) byId("question").focus();
  if (!now && document.activeElement === byId("stop")) byId("question").focus();
  byId("send").hidden = now;
  byId("stop").hidden = !now;
}

/** Keep the end of the answer in sight, unless the reader has scrolled away from it. */
let height = 0;
function follow() {
  const root = document.scrollingElement;
  const wasAtEnd = height - root.scrollTop - root.clientHeight < 80;
  height = root.scrollHeight;
  if (wasAtEnd) root.scrollTop = height;
}

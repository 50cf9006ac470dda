/* What the server says. A refusal, and a server that does not answer, are a Refused. */

import { askForKey, key } from "./key.js";

/** `status` is 0 where no answer came; `retryAfter` is in seconds, null where none was named. */
export class Refused extends Error {
  constructor(message, status = 0, retryAfter = null) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

const GONE = "The server does not answer. It may have been stopped.";
const BROKEN = "The connection broke before the answer ended.";

/** The JSON at `path`, a relative one: the page may stand behind a prefix. */
export async function get(path) {
  const response = await call(path, {}, false);
  try {
    return await response.json();
  } catch {
    throw new Refused(GONE);
  }
}

/** The chunks of a streamed chat completion, each with its `draftpick` field. */
export async function* complete(body, signal) {
  const asked = { ...body, stream: true, stream_options: { include_usage: true }, explain: true };
  const headers = { "Content-Type": "application/json" };
  const options = { method: "POST", headers, body: JSON.stringify(asked), signal };
  const response = await call("v1/chat/completions", options, true);
  try {
    for await (const data of events(response.body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Refused(chunk.error.message ?? BROKEN, response.status);
      yield chunk;
    }
  } catch (error) {
    if (error instanceof Refused || error.name === "AbortError") throw error;
    throw new Refused(BROKEN);
  }
  throw new Refused(BROKEN);
}

/** Fetch; where the key is missing or wrong, ask for it and try again. */
async function call(path, options, insist) {
  for (;;) {
    const sent = key();
    const headers = { ...options.headers, ...(sent && { Authorization: `Bearer ${sent}` }) };
    let response;
    try {
      response = await fetch(path, { ...options, headers, cache: "no-store" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Refused(GONE);
    }
    if (response.ok) return response;
    if (response.status !== 401) throw await refusal(response);
    if (key() !== sent) continue; // given meanwhile
    if (!(await askForKey({ wrong: sent !== null, insist }))) {
      throw new Refused("This server wants a key.", 401);
    }
  }
}

async function refusal(response) {
  const after = Number.parseInt(response.headers.get("Retry-After") ?? "", 10);
  let message = `The server answered with status ${response.status}.`;
  try {
    message = (await response.json()).error.message ?? message;
  } catch {
    // no JSON: a proxy may have answered
  }
  return new Refused(message, response.status, Number.isNaN(after) ? null : after);
}

/** The data of server-sent events. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const whole = (rest + value).split(/\r\n\r\n|\n\n|\r\r/);
      rest = whole.pop();
      for (const event of whole) {
        const lines = event.split(/\r\n|\n|\r/).filter((line) => line.startsWith("data:"));
        if (lines.length) yield lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

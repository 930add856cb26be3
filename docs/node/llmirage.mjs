// A simulated LLM server for tests under Node 20 and newer: Vitest, Jest, node:test, or none. Copy this file; it needs no package.
// Guide: docs/node.md. The server is `llmirage serve` (pip install), or one that runs already (`url`, or LLMIRAGE_URL).
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { inspect } from "node:util";

const IN_PART = new Set(["user", "system", "reply", "error", "path", "rule"]); // a text needs to occur only
const MOST_SHOWN = 10;

/** Fewer or more requests than expected; the message shows the nearest one and which fields differ. */
export class ExpectationError extends Error {
  name = "ExpectationError";
}

/**
 * Start `llmirage serve` on a free port, or use the server at `url`.
 *
 * script: rules, or the object of a script file. faults: objects or texts such as "status; status=503; times=1".
 * options: further words of the command line. speed: "max" unless given. command: what starts llmirage, as words.
 */
export async function start({
  url = process.env.LLMIRAGE_URL,
  apiKey,
  script,
  faults = [],
  options = [],
  speed = "max",
  command = (process.env.LLMIRAGE_COMMAND ?? "llmirage").split(" "),
  timeoutMs = 60_000,
} = {}) {
  const [program, ...words] = command;
  const key = apiKey ? ["--api-key", apiKey] : [];
  const server = url
    ? new Llmirage(url, null, apiKey)
    : await launch(program, [...words, "serve", "--port", "0", "--json", "--speed", String(speed), ...key, ...options], apiKey, timeoutMs);
  try {
    await server.begin(script, faults);
  } catch (error) {
    await server.stop();
    throw error;
  }
  return server;
}

/**
 * One server for a test file: started before its tests, reset before each, stopped after them. Returns a function that gives it.
 *
 * Hooks are the globals of Jest and Vitest, or given: `useLlmirage({...}, { beforeAll, beforeEach, afterAll })`; node:test has
 * `before` and `after`.
 */
export function useLlmirage(settings = {}, hooks = globalThis) {
  let server;
  const before = hooks.beforeAll ?? hooks.before;
  const after = hooks.afterAll ?? hooks.after;
  if (!before || !after || !hooks.beforeEach) throw new TypeError("pass the hooks: { beforeAll, beforeEach, afterAll }");
  const timeout = settings.timeoutMs ?? 60_000;
  before(
    async () => {
      server = await start(settings);
    },
    hooks.beforeAll ? timeout : { timeout },
  );
  hooks.beforeEach(() => server.reset());
  after(() => server?.stop());
  return () => server;
}

async function launch(program, words, apiKey, timeoutMs) {
  const child = spawn(program, words, { stdio: ["ignore", "pipe", "pipe"] });
  let said = "";
  child.stderr.setEncoding("utf8").on("data", (text) => {
    said = (said + text).slice(-4000);
  });
  const killed = () => child.kill();
  process.once("exit", killed);
  child.once("exit", () => process.removeListener("exit", killed));
  const lines = createInterface({ input: child.stdout });
  let timer;
  try {
    const first = await Promise.race([
      once(lines, "line").then(([line]) => line),
      once(child, "exit").then(([status]) => {
        throw new Error(`${program} ${words.join(" ")} ended with status ${status}\n${said}`);
      }),
      new Promise((_, reject) => {
        timer = setTimeout(() => reject(new Error(`llmirage did not answer within ${timeoutMs} ms\n${said}`)), timeoutMs);
      }),
    ]);
    return new Llmirage(JSON.parse(first).url, child, apiKey);
  } catch (error) {
    child.kill();
    if (error.code === "ENOENT") throw new Error(`no program ${program}: install llmirage, or set LLMIRAGE_COMMAND`);
    throw error;
  } finally {
    clearTimeout(timer);
  }
}

export class Llmirage {
  #child;
  #headers;
  #since = 0;
  #script;
  #faults = [];
  #scripted = false; // rules of run time are in force
  #injected = new Set(); // ids of faults of run time

  /** Use `start`. child: the process of the server, or null. */
  constructor(url, child = null, apiKey = undefined) {
    this.url = url.replace(/\/(v1\/?)?$/, "");
    this.apiKey = apiKey ?? "unused";
    this.#child = child;
    this.#headers = apiKey ? { authorization: `Bearer ${apiKey}` } : {};
  }

  /** The address for OpenAI's SDKs; Anthropic's take `url`. */
  get baseURL() {
    return `${this.url}/v1`;
  }

  /** What processes find the server by: `Object.assign(process.env, server.env)` before an SDK's client is made. */
  get env() {
    return {
      OPENAI_BASE_URL: this.baseURL,
      OPENAI_API_KEY: this.apiKey,
      ANTHROPIC_BASE_URL: this.url,
      ANTHROPIC_API_KEY: this.apiKey,
    };
  }

  async begin(script, faults) {
    [this.#script, this.#faults] = [script, faults];
    await this.reset();
  }

  /** Put rules before those in force, or in their place (docs/scripts.md). */
  async script(rules, { replace = false } = {}) {
    this.#scripted = true;
    await this.#call(replace ? "PUT" : "POST", "script", Array.isArray(rules) ? { rules } : rules);
  }

  /** Inject a fault (docs/faults.md): `fault("status", { status: 429, times: 2 })`, or a text. Returns its id and how to remove it. */
  async fault(kind, parameters = {}) {
    const fault = typeof kind === "string" && !kind.includes(";") ? { kind, ...parameters } : kind;
    const { id } = (await this.#call("POST", "faults", { faults: [fault] })).faults.at(-1);
    this.#injected.add(id);
    const happened = async () => (await this.#call("GET", "faults")).faults.find((each) => each.id === id)?.happened ?? 0;
    return { id, happened, remove: () => this.#removeFault(id) };
  }

  /** The requests since the last reset, oldest first, with the fields of docs/journal.md. */
  async requests(filter = {}) {
    const parameters = new URLSearchParams({ ...filter, since: String(this.#since), limit: "1000" });
    return (await this.#call("GET", `journal?${parameters}`)).entries;
  }

  /**
   * The requests whose fields are so: `expect(1, { model: "gpt-4o", user: "weather", status: 200 })`.
   *
   * times: how many there must be; null: at least one. Texts of user, system, reply, error, path and rule need to occur only; other values
   * must be equal; a RegExp must be found; a function must return true. Throws ExpectationError.
   */
  async expect(times, fields) {
    const requests = await this.requests();
    const differing = new Map(requests.map((entry) => [entry, Object.keys(fields).filter((name) => !fits(name, entry[name], fields[name]))]));
    const found = requests.filter((entry) => differing.get(entry).length === 0);
    if (times === null ? found.length > 0 : found.length === times) return found;
    throw new ExpectationError(message(requests, differing, times, fields, found.length));
  }

  /** The verdict on the clients (docs/verdict.md): `passed`, and the rules with their findings, since the last reset. */
  async verdict() {
    return await this.#call("GET", `verdict?since=${this.#since}`);
  }

  /** Forget requests, rules and faults of run time, and the prefix cache; the script and faults of `start` hold again. */
  async reset() {
    for (const id of this.#injected) await this.#removeFault(id);
    if (this.#scripted) await this.#call("DELETE", "script");
    this.#scripted = false;
    if (this.#script) await this.script(this.#script, { replace: true });
    for (const fault of this.#faults) await this.fault(fault);
    await this.#send("POST", "/reset_prefix_cache");
    this.#since = (await this.#call("GET", "journal?limit=1")).last;
  }

  /** End the server, if `start` has started it. */
  async stop() {
    if (!this.#child || this.#child.exitCode !== null || this.#child.signalCode !== null) return;
    const ended = once(this.#child, "exit");
    this.#child.kill();
    await ended;
  }

  async #removeFault(id) {
    this.#injected.delete(id);
    await this.#call("DELETE", `faults/${id}`);
  }

  async #call(method, path, body) {
    const response = await this.#send(method, `/llmirage/${path}`, body);
    const text = await response.text();
    return text ? JSON.parse(text) : null;
  }

  async #send(method, path, body) {
    const json = body === undefined ? {} : { "content-type": "application/json" };
    const response = await fetch(this.url + path, {
      method,
      headers: { ...this.#headers, ...json },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${await response.text()}`);
    return response;
  }
}

function fits(name, actual, wanted) {
  if (wanted instanceof RegExp) return typeof actual === "string" && wanted.test(actual);
  if (typeof wanted === "function") return Boolean(wanted(actual));
  if (IN_PART.has(name) && typeof wanted === "string" && typeof actual === "string") return wanted ? actual.includes(wanted) : actual === "";
  return inspect(actual, { depth: null }) === inspect(wanted, { depth: null });
}

function message(requests, differing, times, fields, found) {
  const count = times === null ? "at least one request" : `${times} request${times === 1 ? "" : "s"}`;
  const lines = [`expected ${count} with ${inspect(fields)}; there ${found === 1 ? "was" : "were"} ${found} of ${requests.length}`];
  const others = requests.filter((entry) => differing.get(entry).length > 0);
  if (others.length > 0) {
    const nearest = others.reduce((a, b) => (differing.get(b).length < differing.get(a).length ? b : a));
    lines.push(`nearest, request ${nearest.number}:`);
    for (const name of differing.get(nearest)) lines.push(`  ${name}: expected ${inspect(fields[name])}`, `  ${" ".repeat(name.length)}       got ${inspect(nearest[name])}`);
  }
  for (const entry of requests.slice(0, MOST_SHOWN)) lines.push(`  ${entry.number}. ${entry.method} ${entry.path} ${entry.model} -> ${entry.status ?? entry.outcome}`);
  if (requests.length > MOST_SHOWN) lines.push(`  ... and ${requests.length - MOST_SHOWN} more`);
  return lines.join("\n");
}

// docs/node/llmirage.mjs, copied beside this file, with node:test: what Vitest and Jest do with it, without either of them.
import assert from "node:assert/strict";
import { after, before, beforeEach, test } from "node:test";
import { ExpectationError, start, useLlmirage } from "./llmirage.mjs";

const weather = [{ when: { user: "weather" }, reply: "It is sunny." }];
const llm = useLlmirage({ script: weather }, { before, beforeEach, after });

async function ask(question, model = "gpt-4o") {
  const response = await fetch(`${llm().baseURL}/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ model, messages: [{ role: "user", content: question }] }),
  });
  return { status: response.status, text: (await response.json()).choices?.[0].message.content };
}

test("a script replies and the journal has the request", async () => {
  assert.deepEqual(await ask("How is the weather?"), { status: 200, text: "It is sunny." });
  const [request] = await llm().expect(1, { model: "gpt-4o", user: "weather", status: 200, reply: /sunny/ });
  assert.equal(request.path, "/v1/chat/completions");
  assert.equal((await llm().requests({ status: 404 })).length, 0);
});

test("rules and faults of one test are gone in the next", async () => {
  await llm().script([{ when: { user: "weather" }, reply: "It rains." }]);
  const fault = await llm().fault("status", { status: 503, times: 1 });
  assert.deepEqual([(await ask("weather")).status, await ask("weather")], [503, { status: 200, text: "It rains." }]);
  assert.equal(await fault.happened(), 1);
  await llm().fault("status; status=429");
});

test("after a reset only the script of the start holds", async () => {
  assert.deepEqual(await ask("weather"), { status: 200, text: "It is sunny." });
  assert.equal((await llm().requests()).length, 1);
  assert.equal((await llm().verdict()).requests, 1);
});

test("the message of a missed expectation shows the nearest request", async () => {
  await ask("How is the weather?", "gpt-4o-mini");
  await assert.rejects(llm().expect(1, { model: "gpt-4o", user: "weather" }), (error) => {
    assert.ok(error instanceof ExpectationError);
    assert.match(error.message, /expected 1 request with .*there were 0 of 1/);
    assert.match(error.message, /model: expected 'gpt-4o'\n\s+got 'gpt-4o-mini'/);
    assert.doesNotMatch(error.message, /user: expected/);
    return true;
  });
  await assert.rejects(llm().expect(null, { status: (status) => status >= 500 }), ExpectationError);
});

test("a server that runs already is used and not ended", async () => {
  const other = await start({ url: llm().baseURL });
  await other.stop();
  assert.equal((await ask("weather")).status, 200);
});

test("mistakes are told", async () => {
  await assert.rejects(llm().script([{ whn: {} }]), /400 .*whn/s);
  await assert.rejects(start({ url: "", command: ["no-such-llmirage"] }), /no program no-such-llmirage/);
  const broken = [process.execPath, "-e", "console.error('no such GPU'); process.exit(2)"];
  await assert.rejects(start({ url: "", command: broken }), /ended with status 2.*no such GPU/s);
});

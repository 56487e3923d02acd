// A worker in Node (20.3 or later), without a dependency: only HTTP.
//
//     HOLDFAST_SERVER=http://127.0.0.1:8080 HOLDFAST_TOKEN=… node worker.mjs
//
// It works on four jobs at a time. Whatever cannot be said to the server is said again until it
// answers, so a server that is restarted, or killed, costs a pause. See docs/worker-protocol.md.

import { appendFile } from "node:fs/promises";
import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { randomUUID } from "node:crypto";

const SERVER = process.env.HOLDFAST_SERVER ?? "http://127.0.0.1:8080";
const TOKEN = process.env.HOLDFAST_TOKEN;
const QUEUES = (process.env.HOLDFAST_QUEUES ?? "default").split(",");
const CONCURRENCY = 4;

/** The server understood, and said no. */
class Refused extends Error {}

/** The attempt is over, or has to be ended by `word`; not the work's own failure. */
class Over extends Error {
  constructor(word = null) {
    super(word ?? "over");
    this.word = word;
  }
}

/** Ask the server, again and again while it is away: every request may be repeated. */
async function call(method, path, body, { patience = Infinity, signal } = {}) {
  const headers = { "content-type": "application/json" };
  if (TOKEN) headers.authorization = `Bearer ${TOKEN}`;
  const until = Date.now() + patience;
  for (let pause = 100; ; pause = Math.min(pause * 2, 2000)) {
    try {
      const limit = AbortSignal.timeout(40_000);
      const reply = await fetch(SERVER + path, {
        method,
        headers,
        body: body && JSON.stringify(body),
        signal: signal ? AbortSignal.any([signal, limit]) : limit,
      });
      if (reply.ok) return await reply.json();
      const told = await reply.text();
      if (reply.status < 500 && reply.status !== 429) throw new Refused(told);
    } catch (error) {
      if (error instanceof Refused || signal?.aborted) throw error;
      console.log(`the server does not answer: ${error.cause?.code ?? error}`);
    }
    if (Date.now() > until) throw new Refused(`no answer to ${method} ${path}`);
    await sleep(pause);
  }
}

/** One attempt of one job: what its task is given. */
class Attempt {
  #session;
  #job;
  #uses = new Map();
  #recorded = new Map();
  #end = null;

  constructor(session, job) {
    this.#session = session;
    this.#job = job;
    this.args = job.args;
  }

  get #which() {
    return { internal_id: this.#job.internal_id, attempt: this.#job.attempt };
  }

  /** Do something once: what is recorded is not done again. */
  async step(name, work) {
    const [known, use] = this.#comeBy("step", name);
    if (known) return known.result;
    const result = await work();
    await this.say("step", { name, use, result });
    return result;
  }

  /** Wait for a signal. Until it comes the job is parked, and this attempt is over. */
  async waitFor(signal) {
    const [known, use] = this.#comeBy("wait", signal);
    if (known) return known.result;
    const answer = await this.say("wait", { signal, use });
    if (!("payload" in answer)) throw new Over();
    return answer.payload;
  }

  #comeBy(kind, name) {
    if (this.#end) throw this.#end;
    const key = JSON.stringify([kind, name]);
    const use = (this.#uses.get(key) ?? 0) + 1;
    this.#uses.set(key, use);
    return [this.#recorded.get(JSON.stringify([kind, name, use])), use];
  }

  /** Report, and hear how the job stands. */
  async say(word, more = {}) {
    const report = { say: word, ...this.#which, ...more };
    const body = { session: this.#session, reports: [report] };
    const [answer] = (await call("POST", "/v1/worker/report", body)).reports;
    if (!answer.accepted) {
      if (!answer.held) throw (this.#end = new Over());
      if (answer.problem.code === "past_timeout") throw (this.#end = new Over("time_out"));
      throw new Refused(answer.problem.detail);
    }
    if (answer.cancel) this.#end = new Over("cancel");
    return answer;
  }

  async #recall() {
    if (!this.#job.recall) return;
    const body = { session: this.#session, ...this.#which };
    for (const one of (await call("POST", "/v1/worker/recall", body)).steps) {
      this.#recorded.set(JSON.stringify([one.kind, one.name, one.use]), one);
    }
  }

  /** Do the task from its beginning to a word that ends the attempt. */
  async run(task) {
    let beating;
    try {
      await this.#recall();
      await this.say("start");
      const beat = () => this.say("heartbeat").catch(() => clearInterval(beating));
      beating = setInterval(beat, this.#job.heartbeat_seconds * 1000);
      await this.say("complete", { result: (await task(this)) ?? null });
    } catch (error) {
      if (error instanceof Over) {
        if (error.word) await this.say(error.word);
      } else {
        const told = { type: error.name, message: error.message, traceback: error.stack ?? "" };
        await this.say("fail", { error: told });
      }
    } finally {
      clearInterval(beating);
    }
  }
}

/** Stand for the world outside: something happens that cannot be undone. */
async function effect(path, what, seconds) {
  await sleep(seconds * 1000);
  await appendFile(path, what + "\n");
  return what;
}

const TASKS = {
  /** Reserve, maybe wait until somebody says yes, then charge: each of them once. */
  async order(attempt) {
    const { name, world, seconds = 0.1, asks = false } = attempt.args;
    const reserved = await attempt.step("reserve", () => effect(world, `reserve ${name}`, seconds));
    const approved = asks ? await attempt.waitFor("approved") : "nobody was asked";
    const charged = await attempt.step("charge", () => effect(world, `charge ${name}`, seconds));
    return { reserved, approved, charged, by: "node" };
  },
};

async function unknown() {
  throw new Error("this worker has no such task");
}

async function work(session, job) {
  const task = Object.hasOwn(TASKS, job.task) ? TASKS[job.task] : unknown;
  try {
    await new Attempt(session, job).run(task);
  } catch (error) {
    console.log(`job ${job.id} was given up: ${error}`);
  }
}

const stopping = new AbortController();
for (const name of ["SIGTERM", "SIGINT"]) process.on(name, () => stopping.abort());

const me = { queues: QUEUES, tasks: Object.keys(TASKS), concurrency: CONCURRENCY };
const { session } = await call("POST", "/v1/worker/sessions", {
  ...me,
  host: hostname(),
  pid: process.pid,
});
console.log(`working as ${session}`);

const running = new Set();
while (!stopping.signal.aborted) {
  if (running.size >= CONCURRENCY) {
    await Promise.race(running);
    continue;
  }
  const limit = CONCURRENCY - running.size;
  const wanted = { session, queues: QUEUES, limit, request_id: randomUUID(), wait_seconds: 20 };
  try {
    const { jobs } = await call("POST", "/v1/worker/claim", wanted, { signal: stopping.signal });
    for (const job of jobs) {
      const one = work(session, job).finally(() => running.delete(one));
      running.add(one);
    }
  } catch (error) {
    if (stopping.signal.aborted) break;
    // Its first answer was lost for so long that what it gave is somebody else's by now.
    console.log(`the claim was refused: ${error.message}`);
    await sleep(1000);
  }
}
await Promise.all(running);
// What a claim may have brought that was not read is given back.
await call("DELETE", `/v1/worker/sessions/${session}`, undefined, { patience: 5000 });

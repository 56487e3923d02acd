// A worker in Node (20.3 or later), without a dependency: only HTTP.
//
//     HOLDFAST_SERVER=http://127.0.0.1:8080 HOLDFAST_TOKEN=… node worker.mjs
//
// It runs four jobs at a time. It repeats every request until the server answers, so a restart or a
// crash of the server only causes a delay. See docs/worker-protocol.md.

import { appendFile } from "node:fs/promises";
import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { randomUUID } from "node:crypto";

const SERVER = process.env.HOLDFAST_SERVER ?? "http://127.0.0.1:8080";
const TOKEN = process.env.HOLDFAST_TOKEN;
const QUEUES = (process.env.HOLDFAST_QUEUES ?? "default").split(",");
const CONCURRENCY = 4;

/** The server refused a request. */
class Refused extends Error {}

/** The attempt is over, or must be ended with `report`; the task itself did not fail. */
class Over extends Error {
  constructor(report = null) {
    super(report ?? "over");
    this.report = report;
  }
}

/** Send a request; retry while the server does not answer. Every request can be repeated. */
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
      const text = await reply.text();
      if (reply.status < 500 && reply.status !== 429) throw new Refused(text);
    } catch (error) {
      if (error instanceof Refused || signal?.aborted) throw error;
      console.log(`the server does not answer: ${error.cause?.code ?? error}`);
    }
    if (Date.now() > until) throw new Refused(`no answer to ${method} ${path}`);
    await sleep(pause);
  }
}

/** One attempt of a job; the argument of a task. */
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

  /** Run a step and record its result; a recorded step does not run again. */
  async step(name, work) {
    const [known, use] = this.#recordedUse("step", name);
    if (known) return known.result;
    const result = await work();
    await this.report("step", { name, use, result });
    return result;
  }

  /** Wait for a signal. If it has not arrived, the job waits and this attempt is over. */
  async waitFor(signal) {
    const [known, use] = this.#recordedUse("wait", signal);
    if (known) return known.result;
    const answer = await this.report("wait", { signal, use });
    if (!("payload" in answer)) throw new Over();
    return answer.payload;
  }

  #recordedUse(kind, name) {
    if (this.#end) throw this.#end;
    const key = JSON.stringify([kind, name]);
    const use = (this.#uses.get(key) ?? 0) + 1;
    this.#uses.set(key, use);
    return [this.#recorded.get(JSON.stringify([kind, name, use])), use];
  }

  /** Send a report; return the server's answer. */
  async report(kind, more = {}) {
    const body = { session: this.#session, reports: [{ say: kind, ...this.#which, ...more }] };
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

  /** Run the task, from `start` to the report that ends the attempt. */
  async run(task) {
    let beating;
    try {
      await this.#recall();
      await this.report("start");
      const beat = () => this.report("heartbeat").catch(() => clearInterval(beating));
      beating = setInterval(beat, this.#job.heartbeat_seconds * 1000);
      await this.report("complete", { result: (await task(this)) ?? null });
    } catch (error) {
      if (error instanceof Over) {
        if (error.report) await this.report(error.report);
      } else {
        const failure = { type: error.name, message: error.message, traceback: error.stack ?? "" };
        await this.report("fail", { error: failure });
      }
    } finally {
      clearInterval(beating);
    }
  }
}

/** Simulate an external effect. */
async function effect(path, what, seconds) {
  await sleep(seconds * 1000);
  await appendFile(path, what + "\n");
  return what;
}

const TASKS = {
  /** Reserve, optionally wait for an approval, then charge; each happens once. */
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
    // The answer was lost for so long that other workers have claimed its jobs.
    console.log(`the claim was refused: ${error.message}`);
    await sleep(1000);
  }
}
await Promise.all(running);
// Ending the session releases jobs of a claim that was not read.
await call("DELETE", `/v1/worker/sessions/${session}`, undefined, { patience: 5000 });

// What every npm peer's program shares: its command line, its clocks, its one line of JSON.

import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";

// How long a worker may take to make durable what its handlers have ended, or to start one job.
const PATIENCE_MS = 60_000;

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    help: { type: "boolean", default: false },
    packages: { type: "string", default: "." },
    url: { type: "string" },
    jobs: { type: "string", default: "1000" },
    bytes: { type: "string", default: "0" },
    callers: { type: "string", default: "1" },
    mode: { type: "string" },
    shared: { type: "boolean", default: false },
    samples: { type: "string", default: "100" },
  },
});

export const options = {
  ...values,
  jobs: Number(values.jobs),
  bytes: Number(values.bytes),
  callers: Number(values.callers),
  samples: Number(values.samples),
};

const manifest = path.resolve(options.packages, "package.json");

// The packages lie outside the checkout's tree, where an import would not find them.
export const load = createRequire(manifest);

export async function main({ name, keeps, settings, verbs }) {
  const known = { version: () => tellVersion({ name, keeps, settings }), ...verbs };
  const verb = positionals[0];
  if (options.help || !Object.hasOwn(known, verb ?? "")) {
    console.error(`usage: --packages DIRECTORY ${Object.keys(known).join("|")} --url DATABASE ...`);
    process.exit(options.help ? 0 : 2);
  }
  const answer = await known[verb]();
  await new Promise((resolve) => process.stdout.write(`${JSON.stringify(answer)}\n`, resolve));
  process.exit(0);
}

function tellVersion({ name, keeps, settings }) {
  const under = `Node ${process.versions.node}, pg ${versionOf("pg")}`;
  return { version: versionOf(name), keeps, settings: `${under}; ${settings}` };
}

function versionOf(name) {
  const file = path.join(path.dirname(manifest), "node_modules", name, "package.json");
  return JSON.parse(readFileSync(file, "utf-8")).version;
}

export function payload() {
  return options.bytes ? { data: noise(options.bytes) } : { n: 1 };
}

// Makes text of so many letters that PostgreSQL cannot compress: base64 of bytes that look random,
// but are the same for everybody: hashes of numbers.
export function noise(size) {
  const hashes = [];
  for (let letters = 0; letters < size; letters += 42) {
    hashes.push(createHash("sha256").update(`bench ${hashes.length}`).digest());
  }
  return Buffer.concat(hashes).toString("base64").slice(0, size);
}

// Submits all jobs by chunks, so that the client prepares one while the server writes another.
export async function byChunks(size, submit) {
  let left = options.jobs;
  const filler = async () => {
    while (left > 0) {
      const chunk = Math.min(size, left);
      left -= chunk;
      await submit(chunk);
    }
  };
  const read = stopwatch();
  await Promise.all([filler(), filler()]);
  return read(options.jobs);
}

export function stopwatch() {
  const began = performance.now();
  const used = process.cpuUsage();
  return (jobs) => {
    const cpu = process.cpuUsage(used);
    const seconds = (performance.now() - began) / 1000;
    return { jobs, seconds, cpu: (cpu.user + cpu.system) / 1e6 };
  };
}

// By the clock that all processes of the machine share.
function machineSeconds() {
  return Number(process.hrtime.bigint()) / 1e9;
}

// Counts handlers as they start; the clock runs from the first of them. `over` settles when the
// last has started, or at SIGTERM.
export function progress() {
  let seen = 0;
  let first = 0;
  let last = 0;
  let read = stopwatch();
  let settle;
  const over = new Promise((resolve) => (settle = resolve));
  process.once("SIGTERM", settle);
  return {
    over,
    startOne() {
      seen += 1;
      if (seen === 1) read = stopwatch();
      if (options.shared) {
        last = machineSeconds();
        first ||= last;
      } else if (seen === options.jobs) settle();
    },
    read() {
      const answer = { ...read(seen), rss: process.resourceUsage().maxRSS * 1024 };
      return options.shared ? { ...answer, first, last } : answer;
    },
  };
}

export async function untilNone(countLeft) {
  const end = performance.now() + PATIENCE_MS;
  while (performance.now() < end) {
    if ((await countLeft()) === 0) return;
  }
  throw new Error("waited in vain for the last ends to be durable");
}

// Submits one by one, from so many callers at the same time.
export async function byCallers(submit) {
  let begun = 0;
  const caller = async () => {
    while (begun < options.jobs) {
      begun += 1;
      await submit();
    }
  };
  const read = stopwatch();
  await Promise.all(Array.from({ length: options.callers }, caller));
  return read(options.jobs);
}

// Times from the beginning of a submit to the start of its handler, one job at a time.
export function latencies({ pauseMs = [10, 30] } = {}) {
  const ms = [];
  let submitted = 0;
  let settle;
  return {
    handlerStarts() {
      ms.push(performance.now() - submitted);
      settle();
    },
    async sample(submit) {
      const [least, most] = pauseMs;
      for (let taken = 0; taken < options.samples; taken += 1) {
        await sleep(least + Math.random() * (most - least));
        const started = new Promise((resolve) => (settle = resolve));
        submitted = performance.now();
        await submit();
        await withLimit(started);
      }
      return { ms };
    },
  };
}

async function withLimit(promise) {
  let timer;
  const limit = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error("waited in vain for a handler")), PATIENCE_MS);
  });
  await Promise.race([promise, limit]).finally(() => clearTimeout(timer));
}

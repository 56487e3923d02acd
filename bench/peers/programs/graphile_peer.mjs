// Drives graphile-worker: batched, as its page on scaling advises, or as it is installed.

import {
  byCallers,
  byChunks,
  latencies,
  load,
  main,
  options,
  payload,
  progress,
  untilNone,
} from "./protocol.mjs";

// Read when the package loads: otherwise it composes a line of log for each job.
process.env.NO_LOG_SUCCESS = "1";

const { Logger, makeWorkerUtils, run } = load("graphile-worker");
const { Client } = load("pg");

const FILL = 2_000;
const logger = new Logger(() => (level, message) => {
  if (level === "error" || level === "warning") console.error(message);
});
const MODES = {
  batched: {
    concurrentJobs: 24,
    maxPoolSize: 24,
    localQueue: { size: 500 },
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0,
  },
  default: {},
};

const connectionString = options.url;

async function withUtils(use) {
  const utils = await makeWorkerUtils({ connectionString, logger });
  try {
    return await use(utils);
  } finally {
    await utils.release();
  }
}

function work(worker, noop) {
  const taskList = { noop };
  return run({ connectionString, logger, noHandleSignals: true, taskList, preset: { worker } });
}

async function setup() {
  const client = await connect();
  await client.query("DROP SCHEMA IF EXISTS graphile_worker CASCADE");
  await withUtils((utils) => utils.migrate());
  return {};
}

async function connect() {
  const client = new Client({ connectionString });
  await client.connect();
  return client;
}

async function fill() {
  const spec = { identifier: "noop", payload: payload() };
  return withUtils(async (utils) => {
    await utils.withPgClient((client) => client.query("SELECT 1"));
    return byChunks(FILL, (size) => utils.addJobs(new Array(size).fill(spec)));
  });
}

async function single() {
  const body = payload();
  return withUtils(async (utils) => {
    await utils.withPgClient((client) => client.query("SELECT 1"));
    return byCallers(() => utils.addJob("noop", body));
  });
}

async function drain() {
  const worker = MODES[options.mode ?? "batched"];
  const watch = await connect();
  const jobs = progress();
  const runner = await work(worker, async () => jobs.startOne());
  await jobs.over;
  if (options.shared) {
    await runner.stop();
    return jobs.read();
  }
  await untilNone(() => countLeft(watch));
  const answer = jobs.read();
  await runner.stop();
  return answer;
}

async function left() {
  return { left: await countLeft(await connect()) };
}

async function countLeft(client) {
  const query = "SELECT count(*)::int AS n FROM graphile_worker._private_jobs";
  const { rows } = await client.query(query);
  return rows[0].n;
}

async function latency() {
  const times = latencies();
  const runner = await work({}, async () => times.handlerStarts());
  const answer = await withUtils((utils) => times.sample(() => utils.addJob("noop", {})));
  await runner.stop();
  return answer;
}

await main({
  name: "graphile-worker",
  keeps: "nothing: a finished job's row is deleted",
  settings: `LISTEN on; latency with the defaults; filled by ${FILL}, two at once`,
  verbs: { setup, fill, single, drain, left, latency },
});

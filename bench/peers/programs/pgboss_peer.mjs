// Drives pg-boss: batches fetched and completed by loops; its polling worker shows its latency.

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

const PgBoss = load("pg-boss");
const { Client } = load("pg");

const QUEUE = "bench";
const BATCH = 500;
const LOOPS = 2;
const FILL = 2_000;
const LEAST_POLLING_SECONDS = 0.5;

async function opened(more = {}) {
  const boss = new PgBoss({ connectionString: options.url, schedule: false, ...more });
  boss.on("error", (error) => console.error(error));
  await boss.start();
  return boss;
}

async function connect() {
  const client = new Client({ connectionString: options.url });
  await client.connect();
  return client;
}

async function setup() {
  const client = await connect();
  await client.query("DROP SCHEMA IF EXISTS pgboss CASCADE");
  const boss = await opened();
  await boss.createQueue(QUEUE);
  return {};
}

async function fill() {
  const job = { name: QUEUE, data: payload() };
  const boss = await opened();
  return byChunks(FILL, (size) => boss.insert(new Array(size).fill(job)));
}

async function single() {
  const body = payload();
  const boss = await opened();
  return byCallers(() => boss.send(QUEUE, body));
}

async function drain() {
  const jobs = progress();
  const boss = await opened();
  let stopped = false;
  jobs.over.then(() => (stopped = true));
  await Promise.all(Array.from({ length: LOOPS }, () => loop(boss, jobs, () => stopped)));
  if (!options.shared) {
    const watch = await connect();
    await untilNone(() => countLeft(watch));
  }
  const answer = jobs.read();
  await boss.stop({ timeout: 5_000 });
  return answer;
}

async function loop(boss, jobs, isStopped) {
  while (!isStopped()) {
    const batch = await boss.fetch(QUEUE, { batchSize: BATCH });
    for (const _ of batch) jobs.startOne();
    if (batch.length > 0) {
      await boss.complete(
        QUEUE,
        batch.map((job) => job.id),
      );
    }
  }
}

async function left() {
  return { left: await countLeft(await connect()) };
}

async function countLeft(client) {
  const query = "SELECT count(*)::int AS n FROM pgboss.job WHERE name = $1 AND state < 'completed'";
  const { rows } = await client.query(query, [QUEUE]);
  return rows[0].n;
}

async function latency() {
  // A poller must be met at any moment between two of its polls.
  const times = latencies({ pauseMs: [10, 10 + LEAST_POLLING_SECONDS * 1000] });
  const boss = await opened();
  const polling = { pollingIntervalSeconds: LEAST_POLLING_SECONDS };
  await boss.work(QUEUE, polling, async () => times.handlerStarts());
  const answer = await times.sample(() => boss.send(QUEUE, {}));
  await boss.stop({ timeout: 5_000 });
  return answer;
}

await main({
  name: "pg-boss",
  keeps: "the job's row, archived after twelve hours",
  settings: `polling each ${LEAST_POLLING_SECONDS} s, its least; filled by ${FILL}, two at once`,
  verbs: { setup, fill, single, drain, left, latency },
});

// Graphile Worker: prepare | fill QUEUE N | one N | bulk N | work
import pg from "pg";
import { makeWorkerUtils, run } from "graphile-worker";
import { PAYLOAD, WARM, answer, chunks, note, place, timed } from "./tally.mjs";

const [verb, ...args] = process.argv.slice(2);
const pgPool = new pg.Pool({ ...place(), max: 10 });
const silent = { info() {}, debug() {}, warn() {}, error: (...words) => console.error(...words) };
const jobs = (queue, numbers) => numbers.map((n) => ({ identifier: queue, payload: { n, text: PAYLOAD } }));

async function addAll(utils, queue, total) {
  for (const numbers of chunks(total)) await utils.addJobs(jobs(queue, numbers));
}

const verbs = {
  async prepare() {
    const utils = await makeWorkerUtils({ pgPool });
    await utils.migrate();
    await utils.release();
    answer({ ok: true });
  },
  async fill(queue, total) {
    const utils = await makeWorkerUtils({ pgPool });
    await addAll(utils, queue, Number(total));
    await utils.release();
    answer({ ok: true });
  },
  async one(total) {
    const client = await pgPool.connect();
    await timed(async () => {
      for (let n = 0; n < Number(total); n += 1) {
        await client.query("begin");
        await client.query({ name: "domain", text: "insert into bench_order (note) values ($1)", values: ["an order"] });
        await client.query({
          name: "add", text: "select graphile_worker.add_job('bench', $1::json)",
          values: [JSON.stringify({ n, text: PAYLOAD })],
        });
        await client.query("commit");
      }
    });
    client.release();
  },
  async bulk(total) {
    const utils = await makeWorkerUtils({ pgPool });
    await addAll(utils, "bench", WARM);
    await timed(() => addAll(utils, "bench", Number(total)));
    await utils.release();
  },
  async work() {
    const runner = await run({
      pgPool,
      taskList: { bench: (payload) => note(payload.n) },
      preset: {
        worker: {
          concurrentJobs: Number(process.env.BENCH_CONCURRENCY),
          localQueue: { size: 500 },
          completeJobBatchDelay: 0,
          failJobBatchDelay: 0,
          maxPoolSize: 10,
        },
      },
    });
    await runner.promise;
  },
};
await verbs[verb](...args);
await pgPool.end().catch(() => {});

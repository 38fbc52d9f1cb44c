// pg-boss: prepare | fill QUEUE N | one N | bulk N | work
import pg from "pg";
import { PgBoss } from "pg-boss";
import { PAYLOAD, WARM, answer, chunks, note, place, timed } from "./tally.mjs";

const [verb, ...args] = process.argv.slice(2);
const working = verb === "work";
const boss = new PgBoss({
  ...place(), max: 10, supervise: working, schedule: false, useListenNotify: working,
  migrate: verb === "prepare", createSchema: verb === "prepare",
});
boss.on("error", (error) => console.error(error));

async function insertAll(queue, total) {
  for (const numbers of chunks(total)) {
    await boss.insert(queue, numbers.map((n) => ({ data: { n, text: PAYLOAD } })));
  }
}

const verbs = {
  async prepare() {
    for (const queue of ["bench", "other"]) await boss.createQueue(queue, { notify: true });
    answer({ ok: true });
  },
  async fill(queue, total) {
    await insertAll(queue, Number(total));
    answer({ ok: true });
  },
  async one(total) {
    const client = new pg.Client(place());
    await client.connect();
    const db = { executeSql: (text, values) => client.query(text, values) };
    await timed(async () => {
      for (let n = 0; n < Number(total); n += 1) {
        await client.query("begin");
        await client.query({ name: "domain", text: "insert into bench_order (note) values ($1)", values: ["an order"] });
        await boss.send("bench", { n, text: PAYLOAD }, { db });
        await client.query("commit");
      }
    });
    await client.end();
  },
  async bulk(total) {
    await insertAll("bench", WARM);
    await timed(() => insertAll("bench", Number(total)));
  },
  async work() {
    await boss.work("bench", { batchSize: 1000, localConcurrency: Number(process.env.BENCH_CONCURRENCY), burstWhenBatchFull: true }, async (jobs) => {
      for (const job of jobs) note(job.data.n);
    });
    await new Promise((resolve) => process.once("SIGTERM", resolve));
  },
};
await boss.start();
await verbs[verb](...args);
await boss.stop({ graceful: false, close: true }).catch(() => {});
process.exit(0);

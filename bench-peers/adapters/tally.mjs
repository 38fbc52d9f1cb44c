// What every handler does: count. The same as tally.py, for adapters in JavaScript.
import { writeFileSync } from "node:fs";

export const PAYLOAD = "x".repeat(80);
const MARKS = 10;
export const WARM = 1_000; // jobs in a bulk call before the one that is timed
const CHUNK = 10_000;

const wanted = Number(process.env.BENCH_JOBS ?? 0);
const keepStarts = process.env.BENCH_STARTS === "1";
const step = Math.max(1, Math.floor(wanted / MARKS));
const starts = {};
const marks = [];
let done = 0;

export const now = () => Number(process.hrtime.bigint()); // CLOCK_MONOTONIC, the clock of Python's monotonic_ns
const report = (facts) => writeFileSync(process.env.BENCH_REPORT, JSON.stringify(facts) + "\n", { flag: "a" });

export function note(n) {
  if (keepStarts) starts[n] = now();
  done += 1;
  if (done === 1) report({ first: now() });
  if (done % step === 0) marks.push(now());
  if (done === wanted) report({ last: now(), marks, starts });
}

export function* chunks(total) {
  for (let start = 0; start < total; start += CHUNK) {
    const length = Math.min(CHUNK, total - start);
    yield Array.from({ length }, (_, i) => start + i);
  }
}

export const answer = (facts) => process.stdout.write(JSON.stringify(facts) + "\n");

// libpq's URL of a Unix socket is not one that `pg` can read.
export function place() {
  const url = new URL(process.env.BENCH_URL.replace("@/", "@localhost/"));
  return {
    user: decodeURIComponent(url.username),
    password: decodeURIComponent(url.password) || undefined,
    database: decodeURIComponent(url.pathname.slice(1)),
    host: url.searchParams.get("host") ?? url.hostname,
    port: Number(url.searchParams.get("port") ?? (url.port || 5432)),
  };
}

export async function timed(work) {
  const start = now();
  await work();
  answer({ seconds: (now() - start) / 1e9 });
}

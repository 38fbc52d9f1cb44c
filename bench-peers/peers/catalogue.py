"""The peers: what runs, with which settings, and how to look at its queue in SQL."""

from __future__ import annotations

from peers.model import WHAT, Peer, What

EVERYTHING: frozenset[What] = frozenset(WHAT)
DRAIN: frozenset[What] = frozenset(["drain"])
_ARGS = "json_build_object('n', %(n)s::int, 'text', %(text)s::text)"
_KEPT_ADD = f"select kept.enqueue('bench', {_ARGS})"
# One look into each of the indexes that a job of the lane may be in: beside a million others, a look at all is a load.
_KEPT_LEFT = " or ".join(
    f"exists (select from kept.job where {where} and lane = (select id from kept.lane where queue = 'bench'))"
    for where in ("ready", "not ready and not suspect", "suspect")
).join(("select ", ""))
_KEPT_WORK = ("{bin}/kept", "worker", "kept_app:app", "--queues", "bench", "--log-level", "warning")
_PY_WORK = ("{bin}/python", "{adapter}", "work")

PEERS: tuple[Peer, ...] = (
    Peer(
        name="kept",
        title="Kept (defaults)",
        settings="kept worker, nothing set",
        adapter="kept_peer.py",
        home="",
        package="kept",
        measured=EVERYTHING,
        worker=_KEPT_WORK,
        add=_KEPT_ADD,
        left=_KEPT_LEFT,
    ),
    Peer(
        name="kept-tuned",
        title="Kept (tuned)",
        settings="KEPT_CONCURRENCY=100, KEPT_BATCH=1000",
        adapter="kept_peer.py",
        home="",
        package="kept",
        measured=DRAIN,
        worker=_KEPT_WORK,
        env={"KEPT_CONCURRENCY": "100", "KEPT_BATCH": "1000"},
        left=_KEPT_LEFT,
    ),
    Peer(
        name="graphile",
        title="Graphile Worker",
        settings="concurrentJobs 8, localQueue.size 500, completeJobBatchDelay 0",
        adapter="graphile.mjs",
        home="node",
        package="graphile-worker",
        measured=EVERYTHING,
        worker=("{node}", "{adapter}", "work"),
        env={"BENCH_CONCURRENCY": "8"},
        add=f"select graphile_worker.add_job('bench', {_ARGS})",
        left="""select exists (select from graphile_worker._private_jobs j
                join graphile_worker._private_tasks t on t.id = j.task_id where t.identifier = 'bench')""",
    ),
    Peer(
        name="pgboss",
        title="pg-boss",
        settings="batchSize 1000, localConcurrency 2, burstWhenBatchFull, LISTEN/NOTIFY on",
        adapter="pgboss.mjs",
        home="node",
        package="pg-boss",
        measured=EVERYTHING,
        worker=("{node}", "{adapter}", "work"),
        env={"BENCH_CONCURRENCY": "2"},
        # What its send() runs for a queue with `notify`, without the options nobody gave.
        add=f"""with added as (
                  insert into pgboss.job (name, data, policy, expire_seconds, deletion_seconds, keep_until, retry_limit,
                                          retry_delay, retry_backoff)
                  select q.name, {_ARGS}, q.policy, q.expire_seconds, q.deletion_seconds,
                         now() + q.retention_seconds * interval '1s', q.retry_limit, q.retry_delay, q.retry_backoff
                  from pgboss.queue q where q.name = 'bench' returning id)
                select pg_notify('pgboss_' || left(encode(sha224('pgboss'::bytea), 'hex'), 24), 'bench') from added""",
        left="select exists (select from pgboss.job where name = 'bench' and state < 'completed')",
    ),
    Peer(
        name="pgqueuer",
        title="PgQueuer",
        settings="asyncpg, uvloop, batch_size 500",
        adapter="pgqueuer_peer.py",
        home="pgqueuer",
        package="pgqueuer",
        measured=EVERYTHING,
        jobs=40_000,
        worker=_PY_WORK,
        add=f"""insert into pgqueuer (priority, entrypoint, payload, status)
                values (0, 'bench', convert_to({_ARGS}::text, 'UTF8'), 'queued')""",
        left="select exists (select from pgqueuer where entrypoint = 'bench')",
    ),
    Peer(
        name="procrastinate",
        title="Procrastinate",
        settings="concurrency 4, a pool of 6 connections",
        adapter="procrastinate_peer.py",
        home="procrastinate",
        package="procrastinate",
        measured=frozenset(["drain", "latency", "enqueue"]),
        jobs=3_000,
        worker=_PY_WORK,
        env={"BENCH_CONCURRENCY": "4"},
        add=f"""select procrastinate_defer_jobs_v1(array[
                row('bench', 'bench', 0, null, null, {_ARGS}::jsonb, null)::procrastinate_job_to_defer_v1])""",
        left="""select exists (select from procrastinate_jobs
                where queue_name = 'bench' and status in ('todo', 'doing'))""",
    ),
    Peer(
        name="dbos",
        title="DBOS",
        settings="polling_interval_sec 0.05, sys_db_pool_size 20",
        adapter="dbos_peer.py",
        home="dbos",
        package="dbos",
        measured=DRAIN,
        jobs=2_000,
        worker=_PY_WORK,
        left="""select exists (select from dbos.workflow_status
                where queue_name = 'bench' and status in ('ENQUEUED', 'PENDING'))""",
    ),
    Peer(
        name="celery",
        title="Celery",
        settings="pool solo, prefetch multiplier 128, results ignored, no gossip, no mingle",
        adapter="celery_peer.py",
        home="celery",
        package="celery",
        measured=DRAIN,
        jobs=5_000,
        store="redis",
        worker=(
            "{bin}/python", "-m", "celery", "-A", "celery_peer", "worker", "--pool=solo", "-Q", "bench",
            "--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=WARNING",
        ),
    ),
    Peer(
        name="dramatiq",
        title="Dramatiq",
        settings="1 process, 8 threads",
        adapter="dramatiq_peer.py",
        home="dramatiq",
        package="dramatiq",
        measured=DRAIN,
        jobs=8_000,
        store="redis",
        worker=("{bin}/python", "-m", "dramatiq", "dramatiq_peer", "-p", "1", "-t", "8"),
    ),
    Peer(
        name="arq",
        title="arq",
        settings="uvloop, max_jobs 100, poll_delay 1 ms, keep_result 0",
        adapter="arq_peer.py",
        home="arq",
        package="arq",
        measured=DRAIN,
        jobs=8_000,
        store="redis",
        worker=_PY_WORK,
    ),
    Peer(
        name="saq",
        title="SAQ",
        settings="Redis, uvloop, concurrency 100",
        adapter="saq_peer.py",
        home="saq",
        package="saq",
        measured=DRAIN,
        jobs=8_000,
        store="redis",
        worker=_PY_WORK,
    ),
    Peer(
        name="bare",
        title="no queue (bare INSERT, COPY)",
        settings="psycopg; the limit for whoever adds a row",
        adapter="bare_peer.py",
        home="",
        package="psycopg",
        measured=frozenset(["enqueue"]),
    ),
)  # fmt: skip
BY_NAME = {peer.name: peer for peer in PEERS}

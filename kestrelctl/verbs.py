"""Table of kestrelctl's verbs: name, implementation, topic of the help, and examples.

The command tree, completions, man pages and topics of `--help` are made of it. It imports no verb: that of one that is
not used takes longer than a short command runs.
"""

from typing import Final, NamedTuple


class Verb(NamedTuple):
    """A verb, such as `put` or `journal dump`; `place`: module of kestrelctl.commands and function."""

    name: str
    place: str
    examples: tuple[str, ...] = ()


# fmt: off
TOPICS: Final[dict[str, tuple[Verb, ...]]] = {
    "Items": (
        Verb("put", "put.put", (
            "kestrelctl put work 'hello'",
            "seq 1 3 | kestrelctl put work --lines",
            "kestrelctl put work @order.json --expire 10m",
            "kestrelctl put work 'remind' --delay 1h --key order-17",
        )),
        Verb("get", "get.get", (
            "kestrelctl get work --wait 5s",
            "kestrelctl get work --all --exec ./handle-one-item",
            "kestrelctl get work --lease 30s --by worker-7 --exec ./handle-one-item",
            "kestrelctl get work -n 100 --null | xargs -0 -n 1 echo",
        )),
        Verb("peek", "peek.peek", ("kestrelctl peek work --json", "kestrelctl peek dead --json --origin")),
        Verb("items", "items.items", (
            "kestrelctl items work",
            "kestrelctl items work --grep '\"user\": 17' --all -o ndjson",
            "kestrelctl items work --state leased --fields id,holder,left_ms",
        )),
        Verb("tail", "tail.tail", ("kestrelctl tail work", "kestrelctl tail -f work --json")),
        Verb("leases", "leases.leases", (
            "kestrelctl leases --by worker-7",
            "kestrelctl leases work --by worker-7 -o json",
        )),
        Verb("lease confirm", "lease.lease_confirm", ("kestrelctl lease confirm work 2314885530818453537",)),
        Verb("lease extend", "lease.lease_extend", ("kestrelctl lease extend work 2314885530818453537 --lease 5m",)),
        Verb("lease give-back", "lease.lease_give_back", (
            "kestrelctl lease give-back work 2314885530818453537 --delay 1m",
            "kestrelctl lease give-back work 2314885530818453537 --failed",
            "kestrelctl lease give-back work 1234 --id",
        )),
        Verb("cancel", "cancel.cancel", ("kestrelctl cancel work order-17", "kestrelctl cancel work 1234")),
        Verb("run-now", "run_now.run_now", ("kestrelctl run-now work 1234",)),
        Verb("move", "move.move", (
            "kestrelctl move failed work --rate 50/s",
            "kestrelctl move work work --to q2.example.org",
            "kestrelctl move failed work --match timeout --max 10",
        )),
        Verb("copy", "copy.copy", (
            "kestrelctl copy work test --max 1000",
            "kestrelctl copy work work --match '^user 17 ' --to 127.0.0.1:22134",
        )),
        Verb("dead", "dead.dead", ("kestrelctl dead failed", "kestrelctl dead failed --grep order-17 -o json")),
        Verb("redrive", "redrive.redrive",
             ("kestrelctl redrive failed --dry-run", "kestrelctl redrive failed --to work")),
        Verb("export", "export_items.export_items",
             ("kestrelctl export work work.jsonl", "kestrelctl export work | gzip >work.jsonl.gz")),
        Verb("import", "import_items.import_items",
             ("kestrelctl import work work.jsonl", "gunzip <work.jsonl.gz | kestrelctl import work")),
    ),
    "Queues": (
        Verb("ls", "ls.ls", ("kestrelctl ls", "kestrelctl ls 'work*' -o json")),
        Verb("stats", "stats.stats", ("kestrelctl stats", "kestrelctl stats work -o json")),
        Verb("consumers", "consumers.consumers",
             ("kestrelctl consumers work", "kestrelctl consumers work --limit 10 -o json")),
        Verb("readers ls", "readers.readers_ls", ("kestrelctl readers ls work",)),
        Verb("readers create", "readers.readers_create", ("kestrelctl readers create work report --from latest",)),
        Verb("readers move", "readers.readers_move",
             ("kestrelctl readers move work report 1000", "kestrelctl readers move work report latest")),
        Verb("readers drop", "readers.readers_drop", ("kestrelctl readers drop work report",)),
        Verb("history", "history.history", (
            "kestrelctl history work --spool /var/spool/kestrel --since 24h --step 10m",
            "kestrelctl history work --spool /var/spool/kestrel --archive /srv/archive -o json",
            "kestrelctl history work --spool /var/spool/kestrel --since 24h --holders",
        )),
        Verb("wait", "wait.wait", ("kestrelctl wait work --empty --timeout 5m", "kestrelctl wait work --items '<100'")),
        Verb("flush", "flush.flush", ("kestrelctl flush work",)),
        Verb("flush-all", "flush_all.flush_all", ("kestrelctl flush-all --yes",)),
        Verb("flush-expired", "flush_expired.flush_expired", ("kestrelctl flush-expired work",)),
        Verb("flush-all-expired", "flush_all_expired.flush_all_expired", ("kestrelctl flush-all-expired",)),
        Verb("delete", "delete.delete", ("kestrelctl delete work --missing-ok",)),
        Verb("undo", "undo.undo", ("kestrelctl undo work",)),
        Verb("bindings", "bindings.bindings", ("kestrelctl bindings", "kestrelctl bindings celery -o json")),
        Verb("bind", "bindings.bind", ("kestrelctl bind celery work", "kestrelctl bind events audit 'order.#' topic")),
        Verb("unbind", "bindings.unbind",
             ("kestrelctl unbind celery work", "kestrelctl unbind events audit 'order.#' topic")),
        Verb("declare", "declare.declare", ("kestrelctl declare replies-17 max_age=1h idle_delete=30m",)),
    ),
    "Monitoring": (
        Verb("top", "top.top", (
            "kestrelctl top",
            "kestrelctl top --once --json",
            "kestrelctl top --filter 'work items>100' --sort -items",
        )),
        Verb("web", "web.web", ("kestrelctl web", "kestrelctl web --listen 127.0.0.1:8022 -s a:22133 -s b:22133")),
        Verb("watch", "watch.watch",
             ("kestrelctl watch stats work", "kestrelctl watch -i 10s -n 6 ls 'work*' -o ndjson")),
        Verb("check", "check.check", (
            "kestrelctl check",
            "kestrelctl check work --items-warn 1000 --items-crit 10000 --age-crit 10m --waiters-min 1",
            "kestrelctl check -o prometheus",
        )),
        Verb("doctor", "doctor.doctor",
             ("kestrelctl doctor", "kestrelctl doctor --config /etc/kestreld/kestreld.yaml -o json")),
    ),
    "Server": (
        Verb("dump-config", "dump_config.dump_config", ("kestrelctl dump-config", "kestrelctl dump-config -o json")),
        Verb("dump-stats", "dump_stats.dump_stats", ("kestrelctl dump-stats",)),
        Verb("reload", "reload.reload", ("kestrelctl reload",)),
        Verb("version", "version.version", ("kestrelctl version",)),
        Verb("shutdown", "shutdown.shutdown", ("kestrelctl shutdown --yes",)),
    ),
    "Journals": (
        Verb("journal import", "journal.journal_import", (
            "kestrelctl journal import /var/spool/kestrel-1 --to /var/spool/kestrel",
            "kestrelctl journal import /var/spool/kestrel-1/work --queue work",
        )),
        Verb("journal export", "journal.journal_export",
             ("kestrelctl journal export /var/spool/kestrel --to /tmp/kestrel-2",)),
        Verb("journal dump", "journal_dump.journal_dump", (
            "kestrelctl journal dump work --spool /var/spool/kestrel",
            "kestrelctl journal dump work.journal/0000000007-00000000000000000812.seg --values -o ndjson",
        )),
        Verb("journal diff", "journal_diff.journal_diff",
             ("kestrelctl journal diff /var/spool/kestrel /backup/kestrel --queue work",)),
        Verb("journal explain-space", "journal_explain_space.journal_explain_space",
             ("kestrelctl journal explain-space work --spool /var/spool/kestrel",)),
        Verb("journal peek", "journal_peek.journal_peek", (
            "kestrelctl journal peek work --at 10:32 --spool /var/spool/kestrel",
            "kestrelctl journal peek work --at 2h -n 10 --json --spool /var/spool/kestrel --archive /srv/archive",
        )),
        Verb("journal replay", "journal_replay.journal_replay", (
            "kestrelctl journal replay work --archive /srv/archive --since 24h --to test-host:22133 --speed 10x",
            "kestrelctl journal replay work --spool /var/spool/kestrel --grep order-4711 --to 127.0.0.1"
            " --queue work-again",
        )),
        Verb("journal ship", "journal_ship.journal_ship", (
            "kestrelctl journal ship /srv/archive s3://lake/kestrel/server=a --quiet",
            "kestrelctl journal ship /srv/archive s3://lake/kestrel/server=a --delete",
        )),
        Verb("journal-verify", "journal_verify.journal_verify", (
            "kestrelctl journal-verify /var/spool/kestrel --quiet --state /var/cache/kestrel-journal-verify.json",
            "kestrelctl journal-verify /var/spool/kestrel work --repair --dry-run",
        )),
        Verb("repair", "repair.repair", ("kestrelctl repair work",)),
        Verb("retention simulate", "retention.retention_simulate",
             ("kestrelctl retention simulate work --max-age 1h --max-items 100000 --archive /srv/archive",)),
    ),
    "More": (
        Verb("help", "help.show_help", ("kestrelctl help get", "kestrelctl help exit-codes")),
        Verb("cache get", "cache.cache_get", ("kestrelctl cache get session:17", "kestrelctl cache get page | gunzip")),
        Verb("cache set", "cache.cache_set", (
            "kestrelctl cache set greeting 'hello' --expire 10m",
            "kestrelctl cache set page @page.html -s 127.0.0.1:11211",
        )),
        Verb("cache add", "cache.cache_add", ('kestrelctl cache add lock:report "$$" --expire 30s',)),
        Verb("cache incr", "cache.cache_incr", ("kestrelctl cache incr hits", "kestrelctl cache incr stock --by -2")),
        Verb("cache delete", "cache.cache_delete", ("kestrelctl cache delete session:17 --missing-ok",)),
        Verb("cache flush", "cache.cache_flush", ("kestrelctl cache flush --yes",)),
        Verb("cache stats", "cache.cache_stats", ("kestrelctl cache stats", "kestrelctl cache stats settings -o json")),
        Verb("jobs add", "jobs.jobs_add", (
            "kestrelctl jobs add mail '{\"to\": \"ann\"}' --retry 1m --retries 5",
            "kestrelctl jobs add mail @letter.json --delay 1h --id order-17",
            "seq 1 3 | kestrelctl jobs add numbers --lines",
        )),
        Verb("jobs get", "jobs.jobs_get", (
            "kestrelctl jobs get mail --wait 10s -o json",
            "kestrelctl jobs get mail --wait 10s --exec ./handle-one-job",
            "kestrelctl jobs get mail --raw --ack",
            "kestrelctl jobs get 'mail.*' --match -n 100 -o ndjson",
        )),
        Verb("jobs ack", "jobs.jobs_ack", (
            "kestrelctl jobs ack D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1",
            "kestrelctl jobs scan --in mail -o name | kestrelctl jobs ack -",
        )),
        Verb("jobs fastack", "jobs.jobs_fastack",
             ("kestrelctl jobs fastack D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1",)),
        Verb("jobs nack", "jobs.jobs_nack",
             ("kestrelctl jobs nack D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1 --delay 1m",)),
        Verb("jobs enqueue", "jobs.jobs_enqueue",
             ("kestrelctl jobs enqueue D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1",)),
        Verb("jobs dequeue", "jobs.jobs_dequeue",
             ("kestrelctl jobs dequeue D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1",)),
        Verb("jobs delete", "jobs.jobs_delete", (
            "kestrelctl jobs delete D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1",
            "kestrelctl jobs scan --in mail.dead -o name | kestrelctl jobs delete -",
        )),
        Verb("jobs working", "jobs.jobs_working",
             ("kestrelctl jobs working D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1",)),
        Verb("jobs show", "jobs.jobs_show", ("kestrelctl jobs show D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1 -o json",)),
        Verb("jobs wait", "jobs.jobs_wait",
             ("kestrelctl jobs wait D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1 --wait 1m",)),
        Verb("jobs ls", "job_queues.jobs_ls",
             ("kestrelctl jobs ls", "kestrelctl jobs ls 'mail*' --sort -queued -o json")),
        Verb("jobs scan", "job_queues.jobs_scan",
             ("kestrelctl jobs scan --state active", "kestrelctl jobs scan --in mail --in web -o ndjson")),
        Verb("jobs peek", "job_queues.jobs_peek",
             ("kestrelctl jobs peek mail -n 3", "kestrelctl jobs peek mail.dead --origin -o json")),
        Verb("jobs stat", "job_queues.jobs_stat", ("kestrelctl jobs stat mail",)),
        Verb("jobs count", "job_queues.jobs_count", ("kestrelctl jobs count mail -o json",)),
        Verb("jobs pause", "job_queues.jobs_pause",
             ("kestrelctl jobs pause mail out", "kestrelctl jobs pause mail none")),
        Verb("jobs dead", "job_queues.jobs_dead",
             ("kestrelctl jobs dead mail.dead", "kestrelctl jobs dead mail.dead -n 1000 -o ndjson")),
        Verb("jobs redrive", "job_queues.jobs_redrive",
             ("kestrelctl jobs redrive mail.dead", "kestrelctl jobs redrive mail.dead --max 10")),
        Verb("jobs qdel", "job_queues.jobs_qdel", ("kestrelctl jobs qdel mail --yes",)),
        Verb("jobs restart", "job_queues.jobs_restart", ("kestrelctl jobs restart --yes --wait 1m",)),
        Verb("jobs import", "jobs_import.jobs_import", ("kestrelctl jobs import /var/lib/disque/disque.aof",)),
        Verb("cluster status", "cluster.cluster_status",
             ("kestrelctl cluster status", "kestrelctl cluster status -o nagios -s q1.example.org:7711")),
        Verb("cluster nodes", "cluster.cluster_nodes",
             ("kestrelctl cluster nodes", "kestrelctl cluster nodes -o json --fields id,address,flags")),
        Verb("cluster meet", "cluster_changes.cluster_meet", (
            "kestrelctl cluster meet q2.example.org:7711 q3.example.org:7711 -s q1.example.org:7711",
            "kestrelctl cluster meet 127.0.0.1:7712 --wait 1m",
        )),
        Verb("cluster forget", "cluster_changes.cluster_forget", (
            "kestrelctl cluster forget q3.example.org:7711",
            "kestrelctl cluster forget dcb833cf --yes -s q1.example.org:7711",
        )),
        Verb("cluster leaving", "cluster_changes.cluster_leaving", (
            "kestrelctl cluster leaving -s q3.example.org:7711",
            "kestrelctl cluster leaving yes --hand-over --wait 10m -s q3.example.org:7711",
            "kestrelctl cluster leaving no -s q3.example.org:7711",
        )),
        Verb("cluster start", "cluster_start.cluster_start",
             ("kestrelctl cluster start 3", "kestrelctl cluster start 5 --dir /tmp/trial --port 7711")),
        Verb("context add", "context.context_add", (
            "kestrelctl context add prod q1.example.org q2.example.org --user shop --ca ca.pem --select",
            "kestrelctl context add here 127.0.0.1:22133",
        )),
        Verb("context select", "context.context_select",
             ("kestrelctl context select prod", "kestrelctl context select --none")),
        Verb("context show", "context.context_show",
             ("kestrelctl context show", "kestrelctl context show prod -o json")),
        Verb("context ls", "context.context_ls", ("kestrelctl context ls",)),
        Verb("context rm", "context.context_rm", ("kestrelctl context rm prod",)),
        Verb("bench flood", "bench.flood", ("kestrelctl bench flood -n 100000 -k 1 --transactions",)),
        Verb("bench many-clients", "bench.many_clients", ("kestrelctl bench many-clients --clients 200 --kill 10",)),
        Verb("bench put-many", "bench.put_many", ("kestrelctl bench put-many --clients 50 --items 100000 -o json",)),
        Verb("bench packing", "bench.packing", ("kestrelctl bench packing --cycles 5 --pause 500ms",)),
        Verb("bench timeout", "bench.timeout_test", ("kestrelctl bench timeout --readers 200 --time 5s",)),
        Verb("bench fanout", "bench.fanout", ("kestrelctl bench fanout --children 8",)),
        Verb("spark verify", "spark.verify", (
            "kestrelctl spark verify /var/spool/kestrel '/srv/archive/server=*'",
            "kestrelctl spark verify '/srv/archive/server=*' --state /var/cache/kestrel-verify.json",
        )),
        Verb("spark report", "spark.report", (
            "kestrelctl spark report /var/spool/kestrel --to /tmp/load --since 2025-01-31T12:00",
            "kestrelctl spark report /var/spool/kestrel /srv/archive --to /srv/www/load --state /var/lib/kestrel-load",
        )),
        Verb("spark convert", "spark.convert", (
            "kestrelctl spark convert /srv/archive --to /tmp/january --until 2025-02-01 --values",
            "kestrelctl spark convert /var/spool/kestrel /srv/archive --to /srv/lake/events"
            " --state /srv/lake/events.json",
        )),
        Verb("spark compare", "spark.compare", (
            "kestrelctl spark compare /srv/archive --before 48h..24h --after 24h..now",
            "kestrelctl spark compare --before /srv/www/load-1 --after /srv/www/load-2 --to /srv/www/compared",
        )),
        Verb("spark ingest", "spark.ingest",
             ("kestrelctl spark ingest orders --servers a:22133,b:22133 --reader lake --to /srv/lake/orders",)),
        Verb("spark replay", "spark.replay", (
            "kestrelctl spark replay /srv/archive --servers test:22133 --since 24h --speed 10x --state /var/tmp/replay",
            "kestrelctl spark replay /srv/archive --servers test:22133 --to again --where 'size > 100' --rate 500/s",
        )),
    ),
}
# fmt: on
VERBS: Final = {verb.name: verb for verbs in TOPICS.values() for verb in verbs}
# Verbs of two words, by the first one, and their text in `-h`.
GROUPS: Final = {
    "lease": "Confirm, extend or give back what `get --lease --json` has leased.",
    "readers": "Persistent read positions in a queue's journal (docs/admin.md).",
    "cache": "Read and change a cache: kestreld's (listen.cache) or a memcached.",
    "jobs": "Use jobs and their queues: those of kestreld (listen.disque), or a Disque's.",
    "cluster": "Manage a cluster of nodes of jobs: check its health, add and remove nodes.",
    "context": "Named servers or clusters, with the credentials to use.",
    "journal": "Inspect journals on disk; import and export queues of Kestrel.",
    "retention": "Simulate limits on recorded traffic.",
    "bench": "Load tests. They check that every item arrives exactly once and intact; if not, exit 86.",
    "spark": "Process journals with Spark: requires pip install 'kestreld[spark]' and Java 17.",
}
TAKES_ALL_BEHIND_IT: Final = "watch"  # options of another verb, too


def names_by_topic() -> dict[str, list[str]]:
    """Verbs and groups as `--help` lists them."""
    return {
        topic: list(dict.fromkeys(verb.name.partition(" ")[0] for verb in verbs)) for topic, verbs in TOPICS.items()
    }

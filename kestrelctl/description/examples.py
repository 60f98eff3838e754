"""Examples of every command, shown by `-h` and the man pages, and parsed by kestrelctl in the tests."""

from typing import Final

EXAMPLES: Final[dict[str, tuple[str, ...]]] = {
    "put": (
        "kestrelctl put work 'hello'",
        "seq 1 3 | kestrelctl put work --lines",
        "kestrelctl put work @order.json --expire 10m",
        "kestrelctl put work 'remind' --delay 1h --key order-17",
    ),
    "get": (
        "kestrelctl get work --wait 5s",
        "kestrelctl get work --all --exec ./handle-one-item",
        "kestrelctl get work --lease 30s --exec ./handle-one-item",
        "kestrelctl get work -n 100 --null | xargs -0 -n 1 echo",
    ),
    "peek": ("kestrelctl peek work --json", "kestrelctl peek dead --json --origin"),
    "items": (
        "kestrelctl items work",
        "kestrelctl items work --grep '\"user\": 17' --all -o ndjson",
        "kestrelctl items work --state leased --fields id,client,left_ms",
    ),
    "cancel": ("kestrelctl cancel work order-17", "kestrelctl cancel work 1234"),
    "lease confirm": ("kestrelctl lease confirm work 2314885530818453537",),
    "lease extend": ("kestrelctl lease extend work 2314885530818453537 --lease 5m",),
    "lease give-back": (
        "kestrelctl lease give-back work 2314885530818453537 --delay 1m",
        "kestrelctl lease give-back work 2314885530818453537 --failed",
    ),
    "run-now": ("kestrelctl run-now work 1234",),
    "dead": ("kestrelctl dead failed", "kestrelctl dead failed --grep order-17 -o json"),
    "redrive": ("kestrelctl redrive failed --dry-run", "kestrelctl redrive failed --to work"),
    "tail": ("kestrelctl tail work", "kestrelctl tail -f work --json"),
    "consumers": ("kestrelctl consumers work", "kestrelctl consumers work --limit 10 -o json"),
    "move": (
        "kestrelctl move failed work --rate 50/s",
        "kestrelctl move work work --to q2.example.org",
        "kestrelctl move failed work --match timeout --max 10",
    ),
    "copy": (
        "kestrelctl copy work test --max 1000",
        "kestrelctl copy work work --match '^user 17 ' --to 127.0.0.1:22134",
    ),
    "export": ("kestrelctl export work work.jsonl", "kestrelctl export work | gzip >work.jsonl.gz"),
    "import": ("kestrelctl import work work.jsonl", "gunzip <work.jsonl.gz | kestrelctl import work"),
    "ls": ("kestrelctl ls", "kestrelctl ls 'work*' -o json"),
    "stats": ("kestrelctl stats", "kestrelctl stats work -o json"),
    "top": ("kestrelctl top", "kestrelctl top --once --json", "kestrelctl top --filter 'work items>100' --sort -items"),
    "web": ("kestrelctl web", "kestrelctl web --listen 127.0.0.1:8022 -s a:22133 -s b:22133"),
    "watch": ("kestrelctl watch stats work", "kestrelctl watch -i 10s -n 6 ls 'work*' -o ndjson"),
    "wait": ("kestrelctl wait work --empty --timeout 5m", "kestrelctl wait work --items '<100'"),
    "check": (
        "kestrelctl check",
        "kestrelctl check work --items-warn 1000 --items-crit 10000 --age-crit 10m --waiters-min 1",
        "kestrelctl check -o prometheus",
    ),
    "doctor": ("kestrelctl doctor", "kestrelctl doctor --config /etc/kestreld/kestreld.yaml -o json"),
    "history": (
        "kestrelctl history work --spool /var/spool/kestrel --since 24h --step 10m",
        "kestrelctl history work --spool /var/spool/kestrel --archive /srv/archive -o json",
    ),
    "flush": ("kestrelctl flush work",),
    "flush-all": ("kestrelctl flush-all --yes",),
    "flush-expired": ("kestrelctl flush-expired work",),
    "flush-all-expired": ("kestrelctl flush-all-expired",),
    "delete": ("kestrelctl delete work --missing-ok",),
    "undo": ("kestrelctl undo work",),
    "dump-config": ("kestrelctl dump-config", "kestrelctl dump-config -o json"),
    "dump-stats": ("kestrelctl dump-stats",),
    "reload": ("kestrelctl reload",),
    "version": ("kestrelctl version",),
    "shutdown": ("kestrelctl shutdown --yes",),
    "journal-verify": (
        "kestrelctl journal-verify /var/spool/kestrel --quiet --state /var/cache/kestrel-journal-verify.json",
        "kestrelctl journal-verify /var/spool/kestrel work --repair --dry-run",
    ),
    "repair": ("kestrelctl repair work",),
    "readers ls": ("kestrelctl readers ls work",),
    "readers create": ("kestrelctl readers create work report --from latest",),
    "readers move": ("kestrelctl readers move work report 1000", "kestrelctl readers move work report latest"),
    "readers drop": ("kestrelctl readers drop work report",),
    "cache get": ("kestrelctl cache get session:17", "kestrelctl cache get page | gunzip"),
    "cache set": (
        "kestrelctl cache set greeting 'hello' --expire 10m",
        "kestrelctl cache set page @page.html -s 127.0.0.1:11211",
    ),
    "cache add": ('kestrelctl cache add lock:report "$$" --expire 30s',),
    "cache incr": ("kestrelctl cache incr hits", "kestrelctl cache incr stock --by -2"),
    "cache delete": ("kestrelctl cache delete session:17 --missing-ok",),
    "cache flush": ("kestrelctl cache flush --yes",),
    "cache stats": ("kestrelctl cache stats", "kestrelctl cache stats settings -o json"),
    "jobs add": (
        'kestrelctl jobs add mail \'{"to": "ann"}\' --retry 1m --retries 5',
        "kestrelctl jobs add mail @letter.json --delay 1h --id order-17",
        "seq 1 3 | kestrelctl jobs add numbers --lines",
    ),
    "jobs get": (
        "kestrelctl jobs get mail --wait 10s -o json",
        "kestrelctl jobs get mail --wait 10s --exec ./handle-one-job",
        "kestrelctl jobs get mail --raw --ack",
        "kestrelctl jobs get 'mail.*' --match -n 100 -o ndjson",
    ),
    "jobs ack": (
        "kestrelctl jobs ack D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1",
        "kestrelctl jobs scan --in mail -o name | kestrelctl jobs ack -",
    ),
    "jobs fastack": ("kestrelctl jobs fastack D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1",),
    "jobs nack": ("kestrelctl jobs nack D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1 --delay 1m",),
    "jobs enqueue": ("kestrelctl jobs enqueue D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1",),
    "jobs dequeue": ("kestrelctl jobs dequeue D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1",),
    "jobs delete": (
        "kestrelctl jobs delete D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1",
        "kestrelctl jobs scan --in mail.dead -o name | kestrelctl jobs delete -",
    ),
    "jobs working": ("kestrelctl jobs working D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1",),
    "jobs show": ("kestrelctl jobs show D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1 -o json",),
    "jobs wait": ("kestrelctl jobs wait D-dcb833cf-8YL1NT17e9+wsA/09NqxscQI-05a1 --wait 1m",),
    "jobs ls": ("kestrelctl jobs ls", "kestrelctl jobs ls 'mail*' --sort -queued -o json"),
    "jobs scan": ("kestrelctl jobs scan --state active", "kestrelctl jobs scan --in mail --in web -o ndjson"),
    "jobs peek": ("kestrelctl jobs peek mail -n 3", "kestrelctl jobs peek mail.dead --origin -o json"),
    "jobs stat": ("kestrelctl jobs stat mail",),
    "jobs count": ("kestrelctl jobs count mail -o json",),
    "jobs pause": ("kestrelctl jobs pause mail out", "kestrelctl jobs pause mail none"),
    "jobs dead": ("kestrelctl jobs dead mail.dead", "kestrelctl jobs dead mail.dead -n 1000 -o ndjson"),
    "jobs redrive": ("kestrelctl jobs redrive mail.dead", "kestrelctl jobs redrive mail.dead --max 10"),
    "jobs qdel": ("kestrelctl jobs qdel mail --yes",),
    "jobs restart": ("kestrelctl jobs restart --yes --wait 1m",),
    "jobs import": ("kestrelctl jobs import /var/lib/disque/disque.aof",),
    "cluster status": ("kestrelctl cluster status", "kestrelctl cluster status -o nagios -s q1.example.org:7711"),
    "cluster nodes": ("kestrelctl cluster nodes", "kestrelctl cluster nodes -o json --fields id,address,flags"),
    "cluster meet": (
        "kestrelctl cluster meet q2.example.org:7711 q3.example.org:7711 -s q1.example.org:7711",
        "kestrelctl cluster meet 127.0.0.1:7712 --wait 1m",
    ),
    "cluster forget": (
        "kestrelctl cluster forget q3.example.org:7711",
        "kestrelctl cluster forget dcb833cf --yes -s q1.example.org:7711",
    ),
    "cluster leaving": (
        "kestrelctl cluster leaving -s q3.example.org:7711",
        "kestrelctl cluster leaving yes --hand-over --wait 10m -s q3.example.org:7711",
        "kestrelctl cluster leaving no -s q3.example.org:7711",
    ),
    "cluster start": ("kestrelctl cluster start 3", "kestrelctl cluster start 5 --dir /tmp/trial --port 7711"),
    "context add": (
        "kestrelctl context add prod q1.example.org q2.example.org --user shop --ca ca.pem --select",
        "kestrelctl context add here 127.0.0.1:22133",
    ),
    "context select": ("kestrelctl context select prod", "kestrelctl context select --none"),
    "context show": ("kestrelctl context show", "kestrelctl context show prod -o json"),
    "context ls": ("kestrelctl context ls",),
    "context rm": ("kestrelctl context rm prod",),
    "journal import": (
        "kestrelctl journal import /var/spool/kestrel-1 --to /var/spool/kestrel",
        "kestrelctl journal import /var/spool/kestrel-1/work --queue work",
    ),
    "journal export": ("kestrelctl journal export /var/spool/kestrel --to /tmp/kestrel-2",),
    "journal dump": (
        "kestrelctl journal dump work --spool /var/spool/kestrel",
        "kestrelctl journal dump work.journal/0000000007-00000000000000000812.seg --values -o ndjson",
    ),
    "journal diff": ("kestrelctl journal diff /var/spool/kestrel /backup/kestrel --queue work",),
    "journal explain-space": ("kestrelctl journal explain-space work --spool /var/spool/kestrel",),
    "journal peek": (
        "kestrelctl journal peek work --at 10:32 --spool /var/spool/kestrel",
        "kestrelctl journal peek work --at 2h -n 10 --json --spool /var/spool/kestrel --archive /srv/archive",
    ),
    "journal replay": (
        "kestrelctl journal replay work --archive /srv/archive --since 24h --to test-host:22133 --speed 10x",
        "kestrelctl journal replay work --spool /var/spool/kestrel --grep order-4711 --to 127.0.0.1 --queue work-again",
    ),
    "journal ship": (
        "kestrelctl journal ship /srv/archive s3://lake/kestrel/server=a --quiet",
        "kestrelctl journal ship /srv/archive s3://lake/kestrel/server=a --delete",
    ),
    "retention simulate": (
        "kestrelctl retention simulate work --max-age 1h --max-items 100000 --archive /srv/archive",
    ),
    "bench flood": ("kestrelctl bench flood -n 100000 -k 1 --transactions",),
    "bench many-clients": ("kestrelctl bench many-clients --clients 200 --kill 10",),
    "bench put-many": ("kestrelctl bench put-many --clients 50 --items 100000 -o json",),
    "bench packing": ("kestrelctl bench packing --cycles 5 --pause 500ms",),
    "bench timeout": ("kestrelctl bench timeout --readers 200 --time 5s",),
    "bench fanout": ("kestrelctl bench fanout --children 8",),
    "spark verify": (
        "kestrelctl spark verify /var/spool/kestrel '/srv/archive/server=*'",
        "kestrelctl spark verify '/srv/archive/server=*' --state /var/cache/kestrel-verify.json",
    ),
    "spark report": (
        "kestrelctl spark report /var/spool/kestrel --to /tmp/load --since 2025-01-31T12:00",
        "kestrelctl spark report /var/spool/kestrel /srv/archive --to /srv/www/load --state /var/lib/kestrel-load",
    ),
    "spark ingest": ("kestrelctl spark ingest orders --servers a:22133,b:22133 --reader lake --to /srv/lake/orders",),
    "spark compare": (
        "kestrelctl spark compare /srv/archive --before 48h..24h --after 24h..now",
        "kestrelctl spark compare --before /srv/www/load-1 --after /srv/www/load-2 --to /srv/www/compared",
    ),
    "spark replay": (
        "kestrelctl spark replay /srv/archive --servers test:22133 --since 24h --speed 10x --state /var/tmp/replay",
        "kestrelctl spark replay /srv/archive --servers test:22133 --to again --where 'size > 100' --rate 500/s",
    ),
    "spark convert": (
        "kestrelctl spark convert /srv/archive --to /tmp/january --until 2025-02-01 --values",
        "kestrelctl spark convert /var/spool/kestrel /srv/archive --to /srv/lake/events --state /srv/lake/events.json",
    ),
}


def epilog(command: str) -> str | None:
    """The examples at the end of a command's `-h`."""
    lines = EXAMPLES.get(command)
    if lines is None:
        return None
    return f"\b\nExample{'s' if len(lines) > 1 else ''}:\n" + "\n".join(f"  {line}" for line in lines)

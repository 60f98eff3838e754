# bash completion for kestrelctl. Made from its command tree by `make completions`.

_kestrelctl_options() { # of command $1
    case $1 in
        '') echo '--server -s --context -c --timeout --user --password-file --tls --ca --cert --key --version -h --help' ;;
        'put') echo '--lines --null --length-prefixed --expire --delay --key --server -s --timeout --context -c --user --password-file --tls --ca --cert -h --help' ;;
        'get') echo '-n --all --wait --exec --lease --by --empty-ok --no-create --raw --lines --null --length-prefixed --json --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'peek') echo '--wait --empty-ok --origin --raw --lines --null --length-prefixed --json --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'items') echo '--offset --limit --all --grep --state --output -o --no-headers --fields --sort --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'tail') echo '--follow -f -n --raw --lines --null --length-prefixed --json --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'leases') echo '--by --output -o --no-headers --fields --sort --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'cancel') echo '--id --key --server -s --timeout --context -c --user --password-file --tls --ca --cert -h --help' ;;
        'run-now') echo '--server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'move') echo '--to --match --max --rate --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'copy') echo '--to --match --max --rate --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'dead') echo '--limit --all --grep --output -o --no-headers --fields --sort --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'redrive') echo '--to --dry-run --yes -y --output -o --no-headers --fields --sort --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'export') echo '--resume --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'import') echo '--resume --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'ls') echo '--per-server --output -o --no-headers --fields --sort --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'stats') echo '--wide -w --server-wide --jobs --per-server --output -o --no-headers --fields --sort --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'consumers') echo '--limit --output -o --no-headers --fields --sort --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'history') echo '--spool --archive --since --until --step --holders --output -o --no-headers --fields --sort -h --help' ;;
        'wait') echo '--empty --items --timeout --interval -i --missing-ok --server -s --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'flush') echo '--yes -y --missing-ok --dry-run --count --output -o --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'flush-all') echo '--yes -y --dry-run --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'flush-expired') echo '--output -o --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'flush-all-expired') echo '--output -o --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'delete') echo '--yes -y --missing-ok --dry-run --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'undo') echo '--server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'bindings') echo '--output -o --no-headers --fields --sort --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'bind') echo '--server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'unbind') echo '--server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'declare') echo '--server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'top') echo '--plain --json --once -n --read-only --record --replay --server -s --interval -i --filter --sort --theme --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'web') echo '--listen --allow-actions --server -s --interval -i --filter --sort --theme --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'watch') echo '--interval -i -n -h --help' ;;
        'check') echo '--items-warn --items-crit --oldest-warn --age-warn --oldest-crit --age-crit --waiters-min --output -o --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'doctor') echo '--config --spool --output -o --no-headers --fields --sort --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'dump-config') echo '--origins --output -o --no-headers --fields --sort --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'dump-stats') echo '--per-server --output -o --no-headers --fields --sort --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'reload') echo '--server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'version') echo '--output -o --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'shutdown') echo '--yes -y --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'journal-verify') echo '--repair --dry-run --state --since --quiet -q --output -o --no-headers --fields --sort -h --help' ;;
        'repair') echo '--output -o --no-headers --fields --sort --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'help') echo '-h --help' ;;
        'lease') echo '-h --help' ;;
        'lease confirm') echo '--server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'lease extend') echo '--lease --id --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'lease give-back') echo '--delay --failed --reason --id --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'readers') echo '-h --help' ;;
        'readers ls') echo '--output -o --no-headers --fields --sort --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'readers create') echo '--from --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'readers move') echo '--server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'readers drop') echo '--server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'cache') echo '-h --help' ;;
        'cache get') echo '--server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'cache set') echo '--expire --flags --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'cache add') echo '--expire --flags --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'cache incr') echo '--by --output -o --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'cache delete') echo '--yes -y --missing-ok --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'cache flush') echo '--yes -y --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'cache stats') echo '--output -o --no-headers --fields --sort --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'jobs') echo '-h --help' ;;
        'jobs add') echo '--lines --null --length-prefixed --delay --ttl --retry --retries --maxlen --replicate --id --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'jobs get') echo '-n --wait --match --ack --raw --exec --empty-ok --output -o --no-headers --fields --sort --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'jobs ack') echo '--server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'jobs fastack') echo '--server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'jobs nack') echo '--delay --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'jobs enqueue') echo '--server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'jobs dequeue') echo '--server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'jobs delete') echo '--server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'jobs working') echo '--output -o --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'jobs show') echo '--output -o --no-headers --fields --sort --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'jobs wait') echo '--wait --output -o --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'jobs ls') echo '--output -o --no-headers --fields --sort --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'jobs scan') echo '--in --state --limit --output -o --no-headers --fields --sort --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'jobs peek') echo '-n --newest --origin --output -o --no-headers --fields --sort --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'jobs stat') echo '--output -o --no-headers --fields --sort --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'jobs count') echo '--output -o --no-headers --fields --sort --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'jobs pause') echo '--all-nodes --output -o --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'jobs dead') echo '-n --output -o --no-headers --fields --sort --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'jobs redrive') echo '--max --yes -y --all-nodes --output -o --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'jobs qdel') echo '--yes -y --all-nodes --output -o --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'jobs restart') echo '--wait --yes -y --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'jobs import') echo '--whole --output -o --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'cluster') echo '-h --help' ;;
        'cluster status') echo '--output -o --no-headers --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'cluster nodes') echo '--output -o --no-headers --fields --sort --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'cluster meet') echo '--wait --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'cluster forget') echo '--yes -y --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'cluster leaving') echo '--hand-over --wait --output -o --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'cluster start') echo '--dir --port --set -h --help' ;;
        'context') echo '-h --help' ;;
        'context add') echo '--user --password-file --tls --ca --cert --key --admin-port --cache --jobs --select --replace -h --help' ;;
        'context select') echo '--none -h --help' ;;
        'context show') echo '--output -o --no-headers --fields --sort -h --help' ;;
        'context ls') echo '--output -o --no-headers --fields --sort -h --help' ;;
        'context rm') echo '-h --help' ;;
        'journal') echo '-h --help' ;;
        'journal import') echo '--to --queue --output -o --no-headers --fields --sort --server -s --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'journal export') echo '--to --format --output -o --no-headers --fields --sort -h --help' ;;
        'journal dump') echo '--spool --archive --values --output -o --no-headers --fields --sort -h --help' ;;
        'journal diff') echo '--queue --all --values --quiet -q --output -o --no-headers --fields --sort -h --help' ;;
        'journal explain-space') echo '--spool --output -o --no-headers --fields --sort -h --help' ;;
        'journal peek') echo '--at --spool --archive -n --empty-ok --raw --lines --null --length-prefixed --json -h --help' ;;
        'journal replay') echo '--to --queue --spool --archive --since --until --after --grep --speed --rate --timeout --output -o --no-headers --fields --sort -h --help' ;;
        'journal ship') echo '--queue --delete --quiet -q --output -o --no-headers --fields --sort -h --help' ;;
        'retention') echo '-h --help' ;;
        'retention simulate') echo '--spool --archive --max-age --max-items --max-size --refuse --since --until --output -o --no-headers --fields --sort -h --help' ;;
        'bench') echo '-h --help' ;;
        'bench flood') echo '--items -n --time -t --kilobytes -k --bytes -b --queue -q --prefill -P --producers -R --writers -w --consumers -C --readers --rollup -r --blocking -B --poll --target --transactions -x --monitor -M --rate --server -s --no-flush -F --seed --pid --output -o --json --compare --tolerance --host --port -p --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'bench many-clients') echo '--server -s --sleep --items -n --bytes -b --queue -q --clients -c --kill -k --transactions -x --monitor -M --no-flush -F --seed --pid --output -o --json --compare --tolerance --host --port -p --timeout --context --user --password-file --tls --ca --cert --key -h --help' ;;
        'bench put-many') echo '--clients -c --threads -t --items -n --bytes -b --rollup -r --queue -q --queues -Q --cycles -C --get -g --limit -L --rate --server -s --no-flush -F --seed --pid --output -o --json --compare --tolerance --host --port -p --timeout --context --user --password-file --tls --ca --cert --key -h --help' ;;
        'bench packing') echo '--queue -q --items -n --kilobytes -k --bytes -b --pause -t --cycles -c --transactions -x --monitor -M --server -s --no-flush -F --seed --pid --output -o --json --compare --tolerance --host --port -p --timeout --context --user --password-file --tls --ca --cert --key -h --help' ;;
        'bench timeout') echo '--writers -w --readers -r --delay -d --low -L --high -H --time -t --bytes -b --queue -q --server -s --no-flush -F --seed --pid --output -o --json --compare --tolerance --host --port -p --timeout --context -c --user --password-file --tls --ca --cert --key -h --help' ;;
        'bench fanout') echo '--children -c --items -n --kilobytes -k --bytes -b --queue -q --producers -R --consumers -C --rollup -r --transactions -x --rate --server -s --no-flush -F --seed --pid --output -o --json --compare --tolerance --host --port -p --timeout --context --user --password-file --tls --ca --cert --key -h --help' ;;
        'spark') echo '-h --help' ;;
        'spark verify') echo '--queue --state --master --conf -h --help' ;;
        'spark report') echo '--to --queue --since --until --bucket --state --master --conf -h --help' ;;
        'spark convert') echo '--to --queue --since --until --values --overwrite --state --master --conf -h --help' ;;
        'spark compare') echo '--before --after --to --queue --master --conf -h --help' ;;
        'spark ingest') echo '--servers --to --reader --format --every --option --master --conf -h --help' ;;
        'spark replay') echo '--servers --to --queue --since --until --where --speed --rate --expired --dedup-key --state --mode --option --master --conf -h --help' ;;
    esac
}

_kestrelctl_commands() { # of command $1
    case $1 in
        '') echo 'put get peek items tail leases cancel run-now move copy dead redrive export import ls stats consumers history wait flush flush-all flush-expired flush-all-expired delete undo bindings bind unbind declare top web watch check doctor dump-config dump-stats reload version shutdown journal-verify repair help lease readers cache jobs cluster context journal retention bench spark' ;;
        'lease') echo 'confirm extend give-back' ;;
        'readers') echo 'ls create move drop' ;;
        'cache') echo 'get set add incr delete flush stats' ;;
        'jobs') echo 'add get ack fastack nack enqueue dequeue delete working show wait ls scan peek stat count pause dead redrive qdel restart import' ;;
        'cluster') echo 'status nodes meet forget leaving start' ;;
        'context') echo 'add select show ls rm' ;;
        'journal') echo 'import export dump diff explain-space peek replay ship' ;;
        'retention') echo 'simulate' ;;
        'bench') echo 'flood many-clients put-many packing timeout fanout' ;;
        'spark') echo 'verify report convert compare ingest replay' ;;
    esac
}

# What stands behind an option, or as the argument of that number: "COMMAND --option", "COMMAND 1", "COMMAND +".
# Fails for a flag, and where nothing can stand.
_kestrelctl_place() {
    kind= choice=
    case $1 in
        ' --server' | ' -s' | ' --timeout' | ' --user' | 'put --expire' | 'put --delay' | 'put --key' | 'put --server' | 'put -s' | 'put --timeout' | 'get -n' | 'get --wait' | 'get --lease' | 'get --by' | 'get --server' | 'get -s' | 'get --timeout' | 'peek --wait' | 'peek --server' | 'peek -s' | 'peek --timeout' | 'items --offset' | 'items --limit' | 'items --grep' | 'items --fields' | 'items --sort' | 'items --server' | 'items -s' | 'items --timeout' | 'tail -n' | 'tail --server' | 'tail -s' | 'tail --timeout' | 'leases --by' | 'leases --fields' | 'leases --sort' | 'leases --server' | 'leases -s' | 'leases --timeout' | 'leases 1' | 'cancel --server' | 'cancel -s' | 'cancel --timeout' | 'cancel 2' | 'run-now --server' | 'run-now -s' | 'run-now --timeout' | 'run-now 2' | 'move --to' | 'move --match' | 'move --max' | 'move --rate' | 'move --server' | 'move -s' | 'move --timeout' | 'copy --to' | 'copy --match' | 'copy --max' | 'copy --rate' | 'copy --server' | 'copy -s' | 'copy --timeout' | 'dead --limit' | 'dead --grep' | 'dead --fields' | 'dead --sort' | 'dead --server' | 'dead -s' | 'dead --timeout' | 'redrive --fields' | 'redrive --sort' | 'redrive --server' | 'redrive -s' | 'redrive --timeout' | 'export --server' | 'export -s' | 'export --timeout' | 'import --server' | 'import -s' | 'import --timeout' | 'ls --fields' | 'ls --sort' | 'ls --server' | 'ls -s' | 'ls --timeout' | 'ls +' | 'stats --fields' | 'stats --sort' | 'stats --server' | 'stats -s' | 'stats --timeout' | 'consumers --limit' | 'consumers --fields' | 'consumers --sort' | 'consumers --server' | 'consumers -s' | 'consumers --timeout' | 'history --since' | 'history --until' | 'history --step' | 'history --fields' | 'history --sort' | 'wait --items' | 'wait --timeout' | 'wait --interval' | 'wait -i' | 'wait --server' | 'wait -s' | 'flush --server' | 'flush -s' | 'flush --timeout' | 'flush-all --server' | 'flush-all -s' | 'flush-all --timeout' | 'flush-expired --server' | 'flush-expired -s' | 'flush-expired --timeout' | 'flush-all-expired --server' | 'flush-all-expired -s' | 'flush-all-expired --timeout' | 'delete --server' | 'delete -s' | 'delete --timeout' | 'undo --server' | 'undo -s' | 'undo --timeout' | 'bindings --fields' | 'bindings --sort' | 'bindings --server' | 'bindings -s' | 'bindings --timeout' | 'bindings 1' | 'bind --server' | 'bind -s' | 'bind --timeout' | 'bind 1' | 'bind 3' | 'bind 4' | 'unbind --server' | 'unbind -s' | 'unbind --timeout' | 'unbind 1' | 'unbind 3' | 'unbind 4' | 'declare --server' | 'declare -s' | 'declare --timeout' | 'declare +' | 'top -n' | 'top --server' | 'top -s' | 'top --interval' | 'top -i' | 'top --filter' | 'top --timeout' | 'web --listen' | 'web --server' | 'web -s' | 'web --interval' | 'web -i' | 'web --filter' | 'web --timeout' | 'watch --interval' | 'watch -i' | 'watch -n' | 'watch +' | 'check --items-warn' | 'check --items-crit' | 'check --oldest-warn' | 'check --age-warn' | 'check --oldest-crit' | 'check --age-crit' | 'check --waiters-min' | 'check --server' | 'check -s' | 'check --timeout' | 'doctor --fields' | 'doctor --sort' | 'doctor --server' | 'doctor -s' | 'doctor --timeout' | 'dump-config --fields' | 'dump-config --sort' | 'dump-config --server' | 'dump-config -s' | 'dump-config --timeout' | 'dump-stats --fields' | 'dump-stats --sort' | 'dump-stats --server' | 'dump-stats -s' | 'dump-stats --timeout' | 'reload --server' | 'reload -s' | 'reload --timeout' | 'version --server' | 'version -s' | 'version --timeout' | 'shutdown --server' | 'shutdown -s' | 'shutdown --timeout' | 'journal-verify --since' | 'journal-verify --fields' | 'journal-verify --sort' | 'repair --fields' | 'repair --sort' | 'repair --server' | 'repair -s' | 'repair --timeout' | 'help +' | 'lease confirm --server' | 'lease confirm -s' | 'lease confirm --timeout' | 'lease confirm 2' | 'lease extend --lease' | 'lease extend --server' | 'lease extend -s' | 'lease extend --timeout' | 'lease extend 2' | 'lease give-back --delay' | 'lease give-back --reason' | 'lease give-back --server' | 'lease give-back -s' | 'lease give-back --timeout' | 'lease give-back 2' | 'readers ls --fields' | 'readers ls --sort' | 'readers ls --server' | 'readers ls -s' | 'readers ls --timeout' | 'readers create --from' | 'readers create --server' | 'readers create -s' | 'readers create --timeout' | 'readers create 2' | 'readers move --server' | 'readers move -s' | 'readers move --timeout' | 'readers move 3' | 'readers drop --server' | 'readers drop -s' | 'readers drop --timeout' | 'cache get --server' | 'cache get -s' | 'cache get --timeout' | 'cache get 1' | 'cache set --expire' | 'cache set --flags' | 'cache set --server' | 'cache set -s' | 'cache set --timeout' | 'cache set 1' | 'cache add --expire' | 'cache add --flags' | 'cache add --server' | 'cache add -s' | 'cache add --timeout' | 'cache add 1' | 'cache incr --by' | 'cache incr --server' | 'cache incr -s' | 'cache incr --timeout' | 'cache incr 1' | 'cache delete --server' | 'cache delete -s' | 'cache delete --timeout' | 'cache delete 1' | 'cache flush --server' | 'cache flush -s' | 'cache flush --timeout' | 'cache stats --fields' | 'cache stats --sort' | 'cache stats --server' | 'cache stats -s' | 'cache stats --timeout' | 'cache stats 1' | 'jobs add --delay' | 'jobs add --ttl' | 'jobs add --retry' | 'jobs add --retries' | 'jobs add --maxlen' | 'jobs add --replicate' | 'jobs add --id' | 'jobs add --server' | 'jobs add -s' | 'jobs add --timeout' | 'jobs get -n' | 'jobs get --wait' | 'jobs get --fields' | 'jobs get --sort' | 'jobs get --server' | 'jobs get -s' | 'jobs get --timeout' | 'jobs ack --server' | 'jobs ack -s' | 'jobs ack --timeout' | 'jobs ack +' | 'jobs fastack --server' | 'jobs fastack -s' | 'jobs fastack --timeout' | 'jobs fastack +' | 'jobs nack --delay' | 'jobs nack --server' | 'jobs nack -s' | 'jobs nack --timeout' | 'jobs nack +' | 'jobs enqueue --server' | 'jobs enqueue -s' | 'jobs enqueue --timeout' | 'jobs enqueue +' | 'jobs dequeue --server' | 'jobs dequeue -s' | 'jobs dequeue --timeout' | 'jobs dequeue +' | 'jobs delete --server' | 'jobs delete -s' | 'jobs delete --timeout' | 'jobs delete +' | 'jobs working --server' | 'jobs working -s' | 'jobs working --timeout' | 'jobs working 1' | 'jobs show --fields' | 'jobs show --sort' | 'jobs show --server' | 'jobs show -s' | 'jobs show --timeout' | 'jobs show 1' | 'jobs wait --wait' | 'jobs wait --server' | 'jobs wait -s' | 'jobs wait --timeout' | 'jobs wait 1' | 'jobs ls --fields' | 'jobs ls --sort' | 'jobs ls --server' | 'jobs ls -s' | 'jobs ls --timeout' | 'jobs ls +' | 'jobs scan --limit' | 'jobs scan --fields' | 'jobs scan --sort' | 'jobs scan --server' | 'jobs scan -s' | 'jobs scan --timeout' | 'jobs peek -n' | 'jobs peek --fields' | 'jobs peek --sort' | 'jobs peek --server' | 'jobs peek -s' | 'jobs peek --timeout' | 'jobs stat --fields' | 'jobs stat --sort' | 'jobs stat --server' | 'jobs stat -s' | 'jobs stat --timeout' | 'jobs count --fields' | 'jobs count --sort' | 'jobs count --server' | 'jobs count -s' | 'jobs count --timeout' | 'jobs pause --server' | 'jobs pause -s' | 'jobs pause --timeout' | 'jobs dead -n' | 'jobs dead --fields' | 'jobs dead --sort' | 'jobs dead --server' | 'jobs dead -s' | 'jobs dead --timeout' | 'jobs redrive --max' | 'jobs redrive --server' | 'jobs redrive -s' | 'jobs redrive --timeout' | 'jobs qdel --server' | 'jobs qdel -s' | 'jobs qdel --timeout' | 'jobs restart --wait' | 'jobs restart --server' | 'jobs restart -s' | 'jobs restart --timeout' | 'jobs import --server' | 'jobs import -s' | 'jobs import --timeout' | 'cluster status --server' | 'cluster status -s' | 'cluster status --timeout' | 'cluster nodes --fields' | 'cluster nodes --sort' | 'cluster nodes --server' | 'cluster nodes -s' | 'cluster nodes --timeout' | 'cluster meet --wait' | 'cluster meet --server' | 'cluster meet -s' | 'cluster meet --timeout' | 'cluster meet +' | 'cluster forget --server' | 'cluster forget -s' | 'cluster forget --timeout' | 'cluster forget 1' | 'cluster leaving --wait' | 'cluster leaving --server' | 'cluster leaving -s' | 'cluster leaving --timeout' | 'cluster start --port' | 'cluster start --set' | 'cluster start 1' | 'context add --user' | 'context add --admin-port' | 'context add --cache' | 'context add --jobs' | 'context add 1' | 'context add +' | 'context show --fields' | 'context show --sort' | 'context ls --fields' | 'context ls --sort' | 'journal import --fields' | 'journal import --sort' | 'journal import --server' | 'journal import -s' | 'journal import --timeout' | 'journal export --fields' | 'journal export --sort' | 'journal dump --fields' | 'journal dump --sort' | 'journal dump 1' | 'journal diff --fields' | 'journal diff --sort' | 'journal explain-space --fields' | 'journal explain-space --sort' | 'journal peek --at' | 'journal peek -n' | 'journal replay --to' | 'journal replay --since' | 'journal replay --until' | 'journal replay --after' | 'journal replay --grep' | 'journal replay --speed' | 'journal replay --rate' | 'journal replay --timeout' | 'journal replay --fields' | 'journal replay --sort' | 'journal ship --fields' | 'journal ship --sort' | 'journal ship 1' | 'journal ship 2' | 'retention simulate --max-age' | 'retention simulate --max-items' | 'retention simulate --max-size' | 'retention simulate --since' | 'retention simulate --until' | 'retention simulate --fields' | 'retention simulate --sort' | 'bench flood --items' | 'bench flood -n' | 'bench flood --time' | 'bench flood -t' | 'bench flood --kilobytes' | 'bench flood -k' | 'bench flood --bytes' | 'bench flood -b' | 'bench flood --prefill' | 'bench flood -P' | 'bench flood --producers' | 'bench flood -R' | 'bench flood --writers' | 'bench flood -w' | 'bench flood --consumers' | 'bench flood -C' | 'bench flood --readers' | 'bench flood --rollup' | 'bench flood -r' | 'bench flood --poll' | 'bench flood --target' | 'bench flood --rate' | 'bench flood --server' | 'bench flood -s' | 'bench flood --seed' | 'bench flood --pid' | 'bench flood --tolerance' | 'bench flood --host' | 'bench flood --port' | 'bench flood -p' | 'bench flood --timeout' | 'bench many-clients --server' | 'bench many-clients -s' | 'bench many-clients --sleep' | 'bench many-clients --items' | 'bench many-clients -n' | 'bench many-clients --bytes' | 'bench many-clients -b' | 'bench many-clients --clients' | 'bench many-clients -c' | 'bench many-clients --kill' | 'bench many-clients -k' | 'bench many-clients --seed' | 'bench many-clients --pid' | 'bench many-clients --tolerance' | 'bench many-clients --host' | 'bench many-clients --port' | 'bench many-clients -p' | 'bench many-clients --timeout' | 'bench put-many --clients' | 'bench put-many -c' | 'bench put-many --threads' | 'bench put-many -t' | 'bench put-many --items' | 'bench put-many -n' | 'bench put-many --bytes' | 'bench put-many -b' | 'bench put-many --rollup' | 'bench put-many -r' | 'bench put-many --queues' | 'bench put-many -Q' | 'bench put-many --cycles' | 'bench put-many -C' | 'bench put-many --limit' | 'bench put-many -L' | 'bench put-many --rate' | 'bench put-many --server' | 'bench put-many -s' | 'bench put-many --seed' | 'bench put-many --pid' | 'bench put-many --tolerance' | 'bench put-many --host' | 'bench put-many --port' | 'bench put-many -p' | 'bench put-many --timeout' | 'bench packing --items' | 'bench packing -n' | 'bench packing --kilobytes' | 'bench packing -k' | 'bench packing --bytes' | 'bench packing -b' | 'bench packing --pause' | 'bench packing -t' | 'bench packing --cycles' | 'bench packing -c' | 'bench packing --server' | 'bench packing -s' | 'bench packing --seed' | 'bench packing --pid' | 'bench packing --tolerance' | 'bench packing --host' | 'bench packing --port' | 'bench packing -p' | 'bench packing --timeout' | 'bench timeout --writers' | 'bench timeout -w' | 'bench timeout --readers' | 'bench timeout -r' | 'bench timeout --delay' | 'bench timeout -d' | 'bench timeout --low' | 'bench timeout -L' | 'bench timeout --high' | 'bench timeout -H' | 'bench timeout --time' | 'bench timeout -t' | 'bench timeout --bytes' | 'bench timeout -b' | 'bench timeout --server' | 'bench timeout -s' | 'bench timeout --seed' | 'bench timeout --pid' | 'bench timeout --tolerance' | 'bench timeout --host' | 'bench timeout --port' | 'bench timeout -p' | 'bench timeout --timeout' | 'bench fanout --children' | 'bench fanout -c' | 'bench fanout --items' | 'bench fanout -n' | 'bench fanout --kilobytes' | 'bench fanout -k' | 'bench fanout --bytes' | 'bench fanout -b' | 'bench fanout --producers' | 'bench fanout -R' | 'bench fanout --consumers' | 'bench fanout -C' | 'bench fanout --rollup' | 'bench fanout -r' | 'bench fanout --rate' | 'bench fanout --server' | 'bench fanout -s' | 'bench fanout --seed' | 'bench fanout --pid' | 'bench fanout --tolerance' | 'bench fanout --host' | 'bench fanout --port' | 'bench fanout -p' | 'bench fanout --timeout' | 'spark verify --master' | 'spark verify --conf' | 'spark report --since' | 'spark report --until' | 'spark report --bucket' | 'spark report --master' | 'spark report --conf' | 'spark convert --since' | 'spark convert --until' | 'spark convert --master' | 'spark convert --conf' | 'spark compare --before' | 'spark compare --after' | 'spark compare --master' | 'spark compare --conf' | 'spark ingest --servers' | 'spark ingest --reader' | 'spark ingest --every' | 'spark ingest --option' | 'spark ingest --master' | 'spark ingest --conf' | 'spark replay --servers' | 'spark replay --since' | 'spark replay --until' | 'spark replay --where' | 'spark replay --speed' | 'spark replay --rate' | 'spark replay --mode' | 'spark replay --option' | 'spark replay --master' | 'spark replay --conf') kind=nothing choice='' ;;
        ' --context' | ' -c' | 'context select 1' | 'context show 1' | 'context rm 1') kind=context choice='' ;;
        ' --password-file' | ' --ca' | ' --cert' | ' --key' | 'export 2' | 'import 2' | 'top --record' | 'top --replay' | 'doctor --config' | 'journal-verify --state' | 'journal-verify 1' | 'jobs import 1' | 'context add --password-file' | 'context add --ca' | 'context add --cert' | 'context add --key' | 'journal import --to' | 'journal import 1' | 'journal export 1' | 'journal diff 1' | 'journal diff 2' | 'bench flood --compare' | 'bench many-clients --compare' | 'bench put-many --compare' | 'bench packing --compare' | 'bench timeout --compare' | 'bench fanout --compare' | 'spark verify --state' | 'spark verify +' | 'spark report +' | 'spark convert --state' | 'spark convert +' | 'spark compare +' | 'spark replay +') kind=file choice='' ;;
        'put 1' | 'get 1' | 'peek 1' | 'items 1' | 'tail 1' | 'cancel 1' | 'run-now 1' | 'move 1' | 'move 2' | 'copy 1' | 'copy 2' | 'dead 1' | 'redrive --to' | 'redrive 1' | 'export 1' | 'import 1' | 'stats +' | 'consumers 1' | 'wait 1' | 'flush 1' | 'flush-expired 1' | 'delete 1' | 'undo 1' | 'bind 2' | 'unbind 2' | 'declare 1' | 'check +' | 'repair 1' | 'lease confirm 1' | 'lease extend 1' | 'lease give-back 1' | 'readers ls 1' | 'readers create 1' | 'readers move 1' | 'readers drop 1' | 'journal import --queue' | 'bench flood --queue' | 'bench flood -q' | 'bench many-clients --queue' | 'bench many-clients -q' | 'bench put-many --queue' | 'bench put-many -q' | 'bench packing --queue' | 'bench packing -q' | 'bench timeout --queue' | 'bench timeout -q' | 'bench fanout --queue' | 'bench fanout -q') kind=queue choice='' ;;
        'put 2' | 'cache set 2' | 'cache add 2' | 'jobs add 2') kind=data choice='' ;;
        'get --exec' | 'jobs get --exec') kind=command choice='' ;;
        'items --state') kind=words choice='waiting delayed leased retrying' ;;
        'items --output' | 'items -o' | 'leases --output' | 'leases -o' | 'dead --output' | 'dead -o' | 'redrive --output' | 'redrive -o' | 'ls --output' | 'ls -o' | 'stats --output' | 'stats -o' | 'consumers --output' | 'consumers -o' | 'history --output' | 'history -o' | 'flush --output' | 'flush -o' | 'flush-expired --output' | 'flush-expired -o' | 'flush-all-expired --output' | 'flush-all-expired -o' | 'bindings --output' | 'bindings -o' | 'doctor --output' | 'doctor -o' | 'dump-config --output' | 'dump-config -o' | 'dump-stats --output' | 'dump-stats -o' | 'version --output' | 'version -o' | 'repair --output' | 'repair -o' | 'readers ls --output' | 'readers ls -o' | 'cache incr --output' | 'cache incr -o' | 'cache stats --output' | 'cache stats -o' | 'jobs get --output' | 'jobs get -o' | 'jobs working --output' | 'jobs working -o' | 'jobs show --output' | 'jobs show -o' | 'jobs wait --output' | 'jobs wait -o' | 'jobs ls --output' | 'jobs ls -o' | 'jobs scan --output' | 'jobs scan -o' | 'jobs peek --output' | 'jobs peek -o' | 'jobs stat --output' | 'jobs stat -o' | 'jobs count --output' | 'jobs count -o' | 'jobs pause --output' | 'jobs pause -o' | 'jobs dead --output' | 'jobs dead -o' | 'jobs redrive --output' | 'jobs redrive -o' | 'jobs qdel --output' | 'jobs qdel -o' | 'jobs import --output' | 'jobs import -o' | 'cluster nodes --output' | 'cluster nodes -o' | 'cluster leaving --output' | 'cluster leaving -o' | 'context show --output' | 'context show -o' | 'context ls --output' | 'context ls -o' | 'journal import --output' | 'journal import -o' | 'journal export --output' | 'journal export -o' | 'journal dump --output' | 'journal dump -o' | 'journal diff --output' | 'journal diff -o' | 'journal explain-space --output' | 'journal explain-space -o' | 'journal replay --output' | 'journal replay -o' | 'journal ship --output' | 'journal ship -o' | 'retention simulate --output' | 'retention simulate -o') kind=words choice='table json ndjson yaml tsv csv name' ;;
        'history --spool' | 'history --archive' | 'doctor --spool' | 'cluster start --dir' | 'journal export --to' | 'journal dump --spool' | 'journal dump --archive' | 'journal explain-space --spool' | 'journal peek --spool' | 'journal peek --archive' | 'journal replay --spool' | 'journal replay --archive' | 'retention simulate --spool' | 'retention simulate --archive' | 'spark report --to' | 'spark report --state' | 'spark convert --to' | 'spark compare --to' | 'spark ingest --to' | 'spark replay --state') kind=folder choice='' ;;
        'history 1' | 'journal-verify 2' | 'journal export 2' | 'journal diff --queue' | 'journal explain-space 1' | 'journal peek 1' | 'journal replay --queue' | 'journal replay 1' | 'journal ship --queue' | 'retention simulate 1' | 'spark verify --queue' | 'spark report --queue' | 'spark convert --queue' | 'spark compare --queue' | 'spark ingest +' | 'spark replay --to' | 'spark replay --queue') kind=journal choice='' ;;
        'top --sort' | 'web --sort') kind=words choice='queue items in_per_s out_per_s oldest_ms waiters open_reads bytes logsize mem_items mem_bytes expired discarded age_ms delayed retrying leased next_due_ms state -queue -items -in_per_s -out_per_s -oldest_ms -waiters -open_reads -bytes -logsize -mem_items -mem_bytes -expired -discarded -age_ms -delayed -retrying -leased -next_due_ms -state' ;;
        'top --theme' | 'web --theme') kind=words choice='dark light colour-blind' ;;
        'check --output' | 'check -o') kind=words choice='nagios json prometheus' ;;
        'journal-verify --output' | 'journal-verify -o') kind=words choice='table json ndjson yaml tsv csv name nagios' ;;
        'readers move 2' | 'readers drop 2') kind=reader choice='' ;;
        'jobs add 1' | 'jobs get +' | 'jobs scan --in' | 'jobs peek 1' | 'jobs stat 1' | 'jobs count 1' | 'jobs pause 1' | 'jobs dead 1' | 'jobs redrive 1' | 'jobs qdel 1') kind=job-queue choice='' ;;
        'jobs scan --state') kind=words choice='active queued acked wait-repl' ;;
        'jobs pause 2') kind=words choice='in out all none state' ;;
        'cluster status --output' | 'cluster status -o') kind=words choice='table nagios json prometheus' ;;
        'cluster leaving 1') kind=words choice='yes no state' ;;
        'journal export --format') kind=words choice='kestrel' ;;
        'bench flood --output' | 'bench flood -o' | 'bench many-clients --output' | 'bench many-clients -o' | 'bench put-many --output' | 'bench put-many -o' | 'bench packing --output' | 'bench packing -o' | 'bench timeout --output' | 'bench timeout -o' | 'bench fanout --output' | 'bench fanout -o') kind=words choice='table json' ;;
        'spark ingest --format') kind=words choice='parquet delta' ;;
        *' --context' | *' -c') kind=context choice='' ;;
        *' --user') kind=nothing choice='' ;;
        *' --password-file' | *' --ca' | *' --cert' | *' --key') kind=file choice='' ;;
        *) return 1 ;;
    esac
}

_kestrelctl() {
    local line=${COMP_LINE:0:COMP_POINT} piece i kind choice
    local -a typed=()
    COMPREPLY=()
    # The words as the program gets them: bash cuts them at : and =, too.
    for ((i = 0; i <= COMP_CWORD; i++)); do
        if [[ $i -eq 0 || $line == [[:blank:]]* ]]; then typed+=(""); fi
        line=${line#"${line%%[![:blank:]]*}"}
        piece=${COMP_WORDS[i]}
        if ((i == COMP_CWORD)); then piece=$line; fi
        line=${line#"$piece"}
        typed[${#typed[@]}-1]+=$piece
    done

    local command= argument=1 option= plain= word
    local -i last=$((${#typed[@]} - 1))
    for ((i = 1; i < last; i++)); do
        word=${typed[i]}
        if [[ $option ]]; then
            option=
        elif [[ $word == -- ]]; then
            plain=1
        elif [[ $word == -?* && ! $plain ]]; then
            if _kestrelctl_place "$command $word"; then option=$word; fi
        elif [[ " $(_kestrelctl_commands "$command") " == *" $word "* ]]; then
            command+=${command:+ }$word
        else
            argument=$((argument + 1))
        fi
    done

    local cur=${typed[last]} before= quote=
    if [[ ! $option && $cur == --*=* && ! $plain ]]; then
        option=${cur%%=*} before=${cur%%=*}= cur=${cur#*=}
    fi
    if [[ $cur == [\'\"]* ]]; then
        quote=1 cur=${cur:1}
    else
        cur=${cur//\\/}
    fi
    local -a found=()
    local name rest
    if [[ $option ]]; then
        _kestrelctl_place "$command $option" || return 0
    elif [[ $cur == -* && ! $plain ]]; then
        kind=words choice=$(_kestrelctl_options "$command")
    elif choice=$(_kestrelctl_commands "$command") && [[ $choice ]]; then
        kind=words
    else
        _kestrelctl_place "$command $argument" || _kestrelctl_place "$command +" || return 0
    fi
    case $kind in
        words) while IFS= read -r name; do found+=("$name"); done < <(compgen -W "$choice" -- "$cur") ;;
        queue | job-queue | journal | context | reader)
            while IFS=$'\t' read -r name rest; do
                if [[ ! $quote ]]; then printf -v name %q "$name"; fi
                found+=("$name")
            done < <(timeout 5 "${typed[0]/#\~/$HOME}" __complete "${kind}s" "$cur" "${typed[@]:1}" \
                2>/dev/null </dev/null)
            ;;
        file | folder | data)
            compopt -o filenames 2>/dev/null
            if [[ $kind == data ]]; then
                if [[ $cur != @* ]]; then return 0; fi
                before+=@ cur=${cur:1}
            fi
            [[ $kind == folder ]] && piece=-d || piece=-f
            while IFS= read -r name; do found+=("$name"); done < <(compgen "$piece" -- "${cur/#\~/$HOME}")
            ;;
        command) while IFS= read -r name; do found+=("$name"); done < <(compgen -c -- "$cur") ;;
        setting) _kestrelctl_setting ;;
    esac

    # What bash takes for the word ends at the last : or = before it.
    local whole=$before$cur cut=
    for ((i = 0; i < ${#whole}; i++)); do
        if [[ ! $quote && ${whole:i:1} == [:=] && $COMP_WORDBREAKS == *"${whole:i:1}"* ]]; then cut=${whole:0:i+1}; fi
    done
    for name in "${found[@]}"; do
        name=$before$name
        COMPREPLY+=("${name#"$cut"}")
    done
}

complete -F _kestrelctl kestrelctl

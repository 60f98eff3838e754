# fish completion for kestreld. Made from its command tree by `make completions`.

# Whether the cursor stands behind this command, and, with a number, at its argument of that number (or a later one).
function __kestreld_at
    set -l line (commandline -cp)
    if test "$line" != "$__kestreld_line"
        set -g __kestreld_line $line
        set -g __kestreld_command ''
        set -g __kestreld_number 1
        set -l takes
        for word in (commandline -opc)[2..-1]
            if set -q takes[1]
                set takes
            else if string match -q -- '-?*' $word
                if __kestreld_takes_value "$__kestreld_command $word"
                    set takes $word
                end
            else if contains -- (string trim "$__kestreld_command $word") 'hash-password'
                set __kestreld_command (string trim "$__kestreld_command $word")
            else
                set __kestreld_number (math $__kestreld_number + 1)
            end
        end
    end
    test "$argv[1]" = "$__kestreld_command"; or return 1
    set -q argv[2]; or return 0
    if string match -q -- '*+' $argv[2]
        test $__kestreld_number -ge (string trim -r -c + $argv[2])
    else
        test $__kestreld_number -eq $argv[2]
    end
end

function __kestreld_takes_value
    switch $argv[1]
        case ' --config' ' --set' ' --log-format'
            return 0
    end
    return 1
end

function __kestreld_names # queues, job-queues, journals, contexts or readers
    set -l typed (commandline -ct | string replace -r '^--[^=]*=' '' | string unescape)
    string match -q -- '-*' $typed; and return # an option, for which fish wants the arguments as well
    set -l words (commandline -opc)
    set -l program (string replace -r '^~' $HOME -- $words[1])
    timeout 5 $program __complete $argv[1] "$typed" $words[2..-1] 2>/dev/null </dev/null
end

function __kestreld_files # behind an @
    set -l word (commandline -ct)
    if string match -q '@*' -- $word
        string replace -r '^' @ -- (__fish_complete_path (string sub -s 2 -- $word))
    end
end

function __kestreld_settings # KEY=VALUE
    set -l names listen.memcache listen.admin listen.cache listen.disque listen.admin_hosts metrics.per_queue jobs.retry_from jobs.queues jobs.journal jobs.sync_journal jobs.min_replicate cluster.port cluster.announce cluster.secret_file cluster.tls cluster.node_timeout log.format tls.certificate tls.key tls.client_ca tls.client_certificate insecure user compat queue_path archive_path timeout request_timeout expiration_timer_frequency_seconds sync_together max_open_reads max_line max_memory cache_memory cache_item_size_max max_inflight max_queues max_bindings max_declared max_connections max_connections_per_ip max_items max_size max_item_size discard_old_when_full journal journal_leases sync_journal max_journal_size max_journal_overflow max_memory_size max_age move_expired_to max_retries move_failed_to retry_delays open_transaction_timeout max_lease lease_grace max_delay key_time max_keys trash_seconds idle_delete fanout_only
    set -l queue_names max_items max_size max_item_size discard_old_when_full journal journal_leases sync_journal max_journal_size max_journal_overflow max_memory_size max_age move_expired_to max_retries move_failed_to retry_delays open_transaction_timeout max_lease lease_grace max_delay key_time max_keys trash_seconds idle_delete fanout_only
    set -l word (commandline -ct | string replace -r '^--set=' '')
    if string match -q '*=*' -- $word
        set -l key (string split -m 1 = -- $word)[1]
        switch (string split -r -m 1 . -- $key)[-1]
            case journal
                printf '%s\n' $key={true,false}
            case tls
                printf '%s\n' $key={true,false}
            case format
                printf '%s\n' $key={text,json}
            case client_certificate
                printf '%s\n' $key={required,optional}
            case insecure
                printf '%s\n' $key={true,false}
            case compat
                printf '%s\n' $key={none,kestrel-1}
            case sync_together
                printf '%s\n' $key={true,false}
            case discard_old_when_full
                printf '%s\n' $key={true,false}
            case journal
                printf '%s\n' $key={true,false}
            case journal_leases
                printf '%s\n' $key={true,false}
            case sync_journal
                printf '%s\n' $key={true,false}
            case fanout_only
                printf '%s\n' $key={true,false}
        end
    else if string match -q 'queues.*.*' -- $word
        string replace -r '\.[^.]*$' '' -- $word | read -l queue
        printf '%s\n' $queue.$queue_names=
    else if string match -q 'queues.*' -- $word
        set -l typed (string replace queues. '' -- $word)
        for line in (timeout 5 kestrelctl __complete queues $typed 2>/dev/null </dev/null)
            echo queues.(string split \t -- $line)[1].
        end
    else
        printf '%s\n' $names= queues.
    end
end

complete -c kestreld -e
complete -c kestreld -f
complete -c kestreld -n '__kestreld_at \'\' 1' -a hash-password -d 'Reads a password and prints its hash for the configuration.'
complete -c kestreld -n '__kestreld_at \'\'' -s h -l help -d 'Show this help message and exit.'
complete -c kestreld -n '__kestreld_at \'\'' -l config -r -F -d 'Configuration file; see docs and packaging/kestreld.yaml.'
complete -c kestreld -n '__kestreld_at \'\'' -l set -r -f -a '(__kestreld_settings)' -d 'Override one setting; repeatable.'
complete -c kestreld -n '__kestreld_at \'\'' -l check-config -d 'Check the configuration, report every error and exit.'
complete -c kestreld -n '__kestreld_at \'\'' -l dump-config -d 'Print every setting in force and where it comes from, as a configuration file, and exit.'
complete -c kestreld -n '__kestreld_at \'\'' -l insecure -d 'Accept connections from other machines without authentication (as --set insecure=true).'
complete -c kestreld -n '__kestreld_at \'\'' -l log-format -r -f -a 'text json' -d 'Log format (as --set log.format=json).'
complete -c kestreld -n '__kestreld_at \'\'' -l version -d 'Show program\'s version number and exit.'

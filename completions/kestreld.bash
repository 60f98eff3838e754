# bash completion for kestreld. Made from its command tree by `make completions`.

_kestreld_options() { # of command $1
    case $1 in
        '') echo '-h --help --config --set --check-config --dump-config --insecure --log-format --version' ;;
        'hash-password') echo '' ;;
    esac
}

_kestreld_commands() { # of command $1
    case $1 in
        '') echo 'hash-password' ;;
    esac
}

# What stands behind an option, or as the argument of that number: "COMMAND --option", "COMMAND 1", "COMMAND +".
# Fails for a flag, and where nothing can stand.
_kestreld_place() {
    kind= choice=
    case $1 in
        ' --config') kind=file choice='' ;;
        ' --set') kind=setting choice='' ;;
        ' --log-format') kind=words choice='text json' ;;
        *) return 1 ;;
    esac
}

_kestreld_setting() { # KEY=VALUE
    local key=${cur%%=*} names='listen.memcache listen.admin listen.cache listen.disque listen.admin_hosts metrics.per_queue jobs.retry_from jobs.queues jobs.journal jobs.sync_journal jobs.min_replicate cluster.port cluster.announce cluster.secret_file cluster.tls cluster.node_timeout log.format tls.certificate tls.key tls.client_ca tls.client_certificate insecure user compat queue_path archive_path timeout request_timeout expiration_timer_frequency_seconds sync_together max_open_reads max_line max_memory cache_memory cache_item_size_max max_inflight max_queues max_bindings max_declared max_connections max_connections_per_ip max_items max_size max_item_size discard_old_when_full journal journal_leases sync_journal max_journal_size max_journal_overflow max_memory_size max_age move_expired_to max_retries move_failed_to retry_delays open_transaction_timeout max_lease lease_grace max_delay key_time max_keys trash_seconds idle_delete fanout_only'
    if [[ $cur == *=* ]]; then
        case ${key##*.} in
            'journal') choice='true false' ;;
            'tls') choice='true false' ;;
            'format') choice='text json' ;;
            'client_certificate') choice='required optional' ;;
            'insecure') choice='true false' ;;
            'compat') choice='none kestrel-1' ;;
            'sync_together') choice='true false' ;;
            'discard_old_when_full') choice='true false' ;;
            'journal') choice='true false' ;;
            'journal_leases') choice='true false' ;;
            'sync_journal') choice='true false' ;;
            'fanout_only') choice='true false' ;;
            *) return 0 ;;
        esac
        while IFS= read -r name; do found+=("$key=$name"); done < <(compgen -W "$choice" -- "${cur#*=}")
        return 0
    fi
    compopt -o nospace 2>/dev/null
    if [[ $cur == queues.*.* ]]; then
        names='max_items max_size max_item_size discard_old_when_full journal journal_leases sync_journal max_journal_size max_journal_overflow max_memory_size max_age move_expired_to max_retries move_failed_to retry_delays open_transaction_timeout max_lease lease_grace max_delay key_time max_keys trash_seconds idle_delete fanout_only'
        key=${cur%.*}.
    elif [[ $cur == queues.* ]]; then
        names=$(timeout 5 kestrelctl __complete queues "${cur#queues.}" 2>/dev/null </dev/null | cut -f 1)
        while IFS= read -r name; do [[ $name ]] && found+=("queues.$name."); done <<<"$names"
        return 0
    else
        key=
    fi
    while IFS= read -r name; do found+=("$key${name%=}${name:+=}"); done < <(compgen -W "$names" -- "${cur#"$key"}")
    if [[ queues. == "$cur"* ]]; then found+=(queues.); fi
}

_kestreld() {
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
            if _kestreld_place "$command $word"; then option=$word; fi
        elif [[ " $(_kestreld_commands "$command") " == *" $word "* ]]; then
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
        _kestreld_place "$command $option" || return 0
    elif [[ $cur == -* && ! $plain ]]; then
        kind=words choice=$(_kestreld_options "$command")
    elif choice=$(_kestreld_commands "$command") && [[ $choice ]]; then
        kind=words
    else
        _kestreld_place "$command $argument" || _kestreld_place "$command +" || return 0
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
        setting) _kestreld_setting ;;
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

complete -F _kestreld kestreld

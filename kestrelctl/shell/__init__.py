"""The contract with the shell: data on stdout, messages on stderr, exit codes, signals, progress."""

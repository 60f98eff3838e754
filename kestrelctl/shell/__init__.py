"""What a command line tool is to the shell: data on stdout, words on stderr, exit codes, signals."""

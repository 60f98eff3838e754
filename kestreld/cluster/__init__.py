"""The cluster of job nodes (Disque's) as pure state machines: no sockets, no disk, and no clock of their own."""

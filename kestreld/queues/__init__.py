"""The engine: queues, their readers and the commit at the end of a turn; never waits, never sees a socket."""

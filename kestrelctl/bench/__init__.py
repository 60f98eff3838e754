"""Load tests of `kestrelctl bench`: an event loop for clients, numbered items, and a ledger of every item."""

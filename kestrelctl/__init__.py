"""kestrelctl: the command line of kestreld and of old Kestrels."""

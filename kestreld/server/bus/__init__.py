"""The cluster bus: connections between nodes. What they say to each other is for `kestreld.cluster`."""

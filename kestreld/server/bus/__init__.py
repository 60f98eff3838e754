"""The cluster bus: connections to and from other nodes, which know frames but not what messages mean."""

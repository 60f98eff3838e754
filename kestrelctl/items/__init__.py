"""Items in transit: reading, putting, taking, moving, exporting and importing them, and items as lines and rows."""

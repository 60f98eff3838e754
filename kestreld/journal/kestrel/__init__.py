"""Journal files of the original Kestrel: reading, verifying, salvaging, importing and exporting them."""

"""The files of the original Kestrel: read, checked, salvaged, imported and written back."""

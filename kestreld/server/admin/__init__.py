"""The HTTP port for operators: health, metrics, figures and the reader API (docs/admin.md)."""

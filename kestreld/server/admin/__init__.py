"""The HTTP port for operators: health, metrics, figures, reader API and jobs (docs/admin.md)."""

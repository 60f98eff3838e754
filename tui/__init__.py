"""The live console: `kestrelctl top`. It knows servers by their stats only."""

"""Model files on disk: read, checked before use, and converted. Nothing is ever unpickled."""

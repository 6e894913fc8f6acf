"""History, export, import, checks and retention of stored sessions."""

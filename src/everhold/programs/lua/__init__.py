"""Lua programs: pausable code that may have been written by a model, in a sandbox of its own."""

"""Runs Lua programs, which a model may have written, each in a sandbox."""

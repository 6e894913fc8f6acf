"""Lua packages, compatible with algocline: its files, its environment variables, its verbs.

A Lua package is a folder with an init.lua. It is installed for the user (`installed.py`), or a
project names it in its alc.toml (`project.py`, which also has the search order of `require`).
`everhold.packages` exports the verbs.

Rules
  1. Nothing here runs a package. Its metadata is read as text.
  2. A file is written whole or not at all. A file that cannot be read is not changed.
  3. A change holds a lock: installed.json.lock in the home, .alc-install.lock in a project.
"""

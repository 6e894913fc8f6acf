"""Lua packages as algocline has them: its files, its environment variables, its verbs.

A Lua package is a folder with an init.lua in it. It is installed for the user (`paths.py`), or
belongs to a project that says so in alc.toml (`project.py`). `roots.py` says where `require` looks.
`api.py` has everything that can be done, as plain functions of plain values.

Rules
  1. Nothing here runs a package. What one says of itself is read as text.
  2. A file is written whole or not at all, and one that cannot be read is left as it is.
  3. Whoever changes something holds its lock: installed.json.lock in the home, .alc-install.lock in
     a project.
"""

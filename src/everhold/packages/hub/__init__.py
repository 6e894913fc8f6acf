"""The hub: finds packages that others publish, and publishes one's own.

    index          hub_index.json: the packages of a folder, read as text
    sources        where indexes are: config.toml, hub_registries.json, installed packages, a cache
    search         search and info
    evaluate       reads the specs of packages, in the sandbox
    shape          specs as text, JSON and Markdown
    document       the pages and lists of a collection
    lint           rules for the comment at the top of a package
    compat         ranges of versions of alc_shapes
    projection     what context7.json and .devin/wiki.json say, from alc.toml
    publish        gendoc and dist: checks everything, then writes

Rules
  1. A search goes to the network only when a user or a model asks for one, never by itself. Each
     index is kept for an hour. An index that cannot be read is a warning.
  2. Publishing writes nothing before all of it is made, and each file whole or not at all.
  3. Metadata is read as text. Only the specs of packages are evaluated, in a worker process.
"""

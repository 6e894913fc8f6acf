"""The profile `algocline`: the tools, parameters, results and files of algocline 0.29, on our
sessions.

    tools         the table of tools: names, descriptions, parameters, hints
    query_ids     query ids as algocline has them, and the queries they mean
    render        statuses, snapshots and refusals as algocline writes them
    answer        which questions answers are for
    handlers      what the tools for sessions do, in verbs of the runtime
    transcripts   transcripts in files, notes, and what they add up to
    package       the tools for packages
    resource      alc:// addresses
    server        the protocol

Nothing is decided here that the default profile decides otherwise: it is another table over the
same verbs.
"""

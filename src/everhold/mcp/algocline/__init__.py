"""The profile `algocline`: the tools, parameters, results and files of algocline 0.29.

    server         tools and resources of one server
    session_tools  the tools for sessions and logs
    eval_tools     the tools for evals and scenarios
    package_tools  the tools for packages
    card_tools     the tools for cards
    hub_tools      the tools for the hub
    alc_wire       declarations of tools, statuses, snapshots and refusals, as algocline has them
    query_ids      algocline's query ids, and the queries they mean
    transcripts    transcripts in files, notes, and totals
    resource       alc:// addresses

This profile decides nothing differently from the default one. It uses the same verbs of the
runtime.
"""

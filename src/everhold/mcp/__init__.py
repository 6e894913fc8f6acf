"""The MCP front: a host's own model runs strategies and answers what they ask.

    house     the runtime behind the tools: opened when it can be, and asked again when it could not
    tools     the table of tools: names, descriptions, parameters
    desk      what each tool does, in verbs of the runtime
    reply     how statuses and errors are told to a model
    person    questions for people: put to the person at the client, never answered by a tool
    rounds    a call that returns what it needs, and is made again with the answers
    seal      what the client keeps for us between two rounds, which it can neither read nor forge
    tasks     sessions as tasks, for clients that know tasks
    follow    progress and logs while a call waits
    lore      prompts, the guide, what strategies cost
    server    the protocol: tools, prompts and resources of one server
    message   reading one message of a client, strictly
    serve     standard input and output (stdout: nothing else is on it; pipe: without threads)
    http      streamable HTTP, and who is let in (address: where; token: what clients send; secret: files of one owner)
    hosts     telling hosts of the server
    library   loading the `mcp` library, without what a server does not use

The `mcp` library enters only here.
"""  # noqa: E501

"""The MCP front: a host's own model runs strategies and answers what they ask.

    runtime_holder     the runtime behind the tools: opened when it can be, and asked again when it could not
    tools              the table of tools: names, descriptions, parameters
    handlers           what each tool does, in verbs of the runtime
    render             how statuses and errors are told to a model
    elicitation        questions for people: put to the person at the client, never answered by a tool
    multi_round        a call that returns what it needs, and is made again with the answers
    request_state      what the client keeps for us between two rounds, which it can neither read nor forge
    tasks              sessions as tasks, for clients that know tasks
    progress_notes     progress and logs while a call waits
    instructions       prompts, the guide, what strategies cost
    server             the protocol: tools, prompts and resources of one server
    json_rpc           reading one message of a client, strictly
    serve              standard input and output (stdout: nothing else is on it; stdio: without threads)
    http               streamable HTTP, and who is let in (http_address: where; token: what clients send; owner_file: files of one owner)
    hosts              telling hosts of the server
    sdk                loading the `mcp` library, without what a server does not use

The `mcp` library enters only here.
"""  # noqa: E501

"""What scenarios with agents share: a model that says what was prepared, and what it was shown."""


def use(name, _id=None, **given):
    """The model calls one tool."""
    call = {"name": name, "input": given}
    return {"tool_calls": [{**call, "id": _id} if _id else call]}


def uses(*calls):
    """The model calls several tools at once: (name, input) each."""
    return {"tool_calls": [{"name": name, "input": given} for name, given in calls]}


class Scripted:
    """A model: it says its lines in order, and remembers what it was shown."""

    def __init__(self, *lines):
        self.lines = list(lines)
        self.shown = []

    async def __call__(self, query):
        self.shown.append(query.messages)
        return self.lines.pop(0) if self.lines else "Done."

    @property
    def results(self):
        """The results that the model was shown, in order: what it was told, or (error, words)."""
        found = [block for block in self.shown[-1][-1]["content"] if block["type"] == "tool_result"]
        return [block["content"] for block in found]


def told(nodes):
    """The results of tools in a conversation, in order."""
    blocks = [block for node in nodes if node.role == "tool" for block in node.content]
    return [block["content"] for block in blocks]

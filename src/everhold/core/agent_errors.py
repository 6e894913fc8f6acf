"""What goes wrong around agents and their tools: skills, tool servers and code. `core.errors` has the whole tree."""

from __future__ import annotations

from everhold.core.branches import StoreError, UsageError


class NotAnAgent(UsageError):
    code = "not_an_agent"

    def __init__(self, name: str, hint: str) -> None:
        super().__init__(f"{name!r} is a program, and no agent")
        self.name, self.hint = name, hint


class BadSkill(UsageError):
    code = "bad_skill"
    hint = "A skill is a folder with a SKILL.md that begins with its name and description between two lines of ---."

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where} is no skill: {reason}")
        self.where, self.reason = where, reason


class CodeExecutionUnavailable(UsageError):
    code = "code_execution_unavailable"

    def __init__(self, language: str, languages: list[str]) -> None:
        super().__init__(f"nothing here runs code in {language!r}")
        self.language = language
        self.hint = f"What runs here: {', '.join(languages) or 'nothing'}. Give the agent an executor: Agent(code=[…])."


class CodeExecutionStopped(StoreError):
    code = "code_execution_stopped"
    hint = "The program may or may not be at fault. Run it again; what it had called before is not called twice."

    def __init__(self, language: str, reason: str) -> None:
        super().__init__(f"what runs code in {language!r} has stopped: {reason}")
        self.language, self.reason = language, reason


class ToolServerFailed(StoreError):
    code = "tool_server_failed"
    hint = "It is tried again with the next call. See whether its command starts, or its address answers, by hand."

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"the tool server {name!r} failed: {reason}")
        self.name, self.reason = name, reason

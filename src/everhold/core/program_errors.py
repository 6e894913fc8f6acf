"""Errors of which the next move is the program author's. They are taken from `errors`, where the tree is drawn."""

from __future__ import annotations

from everhold.core.branches import ProgramError


class Diverged(ProgramError):
    code = "diverged"

    def __init__(self, step: int, recorded: str, asked: str) -> None:
        super().__init__(f"step {step}: the program asks {asked}, but the journal holds {recorded}")
        self.step, self.recorded, self.asked = step, recorded, asked
        self.hint = (
            "Nothing was changed. Roll the code back, or fork the session at the last step that matches"
            f" (fork --at {max(step - 1, 0)}), or mark the change with ctx.version, or cancel the session."
        )


class VersionMissing(ProgramError):
    code = "version_missing"
    hint = "Keep the old function beside the new one under @program(name=…, version=…), or fork, or cancel."

    def __init__(self, program: str, wanted: int, found: int) -> None:
        super().__init__(f"the session needs version {wanted} of program {program!r}; here is version {found}")
        self.program, self.wanted, self.found = program, wanted, found


class ForeignCall(ProgramError):
    code = "foreign_call"

    def __init__(self, call: str) -> None:
        super().__init__(
            f"{call} cannot be used inside a program: it reaches outside, and replay would repeat it; use ctx.call"
        )
        self.call = call
        self.hint = "Put it in a function and await ctx.call(function, …), or make it a tool."


class ForeignWake(ProgramError):
    code = "foreign_wake"
    hint = "Do not share locks, events, queues or futures between programs; send a signal instead."

    def __init__(self) -> None:
        super().__init__("something outside tried to wake a program that is waiting")


class Stuck(ProgramError):
    code = "stuck"
    hint = "Something awaits an event that nothing inside the program will ever set."

    def __init__(self, tasks: list[str]) -> None:
        super().__init__(f"nothing is ready and nothing is open; waiting: {', '.join(tasks) or 'no task'}")
        self.tasks = tasks


class Spinning(ProgramError):
    code = "spinning"
    hint = "A loop around sleep(0), or one that swallows cancellation, never lets the program pause."

    def __init__(self, limit: str) -> None:
        super().__init__(f"the program did not pause within {limit}")
        self.limit = limit


class CannotRestart(ProgramError):
    code = "cannot_restart"
    hint = "Return what the next round needs to the program that was started, and let that one restart."

    def __init__(self, why: str) -> None:
        super().__init__(f"ctx.restart cannot be used here: {why}")
        self.why = why


class Poison(ProgramError):
    code = "poison"
    hint = "The program kills the process that runs it. Mend it, then retry the session."

    def __init__(self, deaths: int) -> None:
        super().__init__(f"{deaths} processes died while they ran this session")
        self.deaths = deaths


class TooLarge(ProgramError):
    code = "too_large"
    hint = "Ask and return less at once; keep large texts where they are and pass their names."

    def __init__(self, size: int, largest: int) -> None:
        super().__init__(f"the program said {size:,} bytes at once; at most {largest:,} are taken")
        self.size, self.largest = size, largest


class RunsOnImport(ProgramError):
    code = "runs_on_import"
    hint = "Put the lines that start sessions under `if __name__ == '__main__':`."

    def __init__(self, path: str) -> None:
        super().__init__(f"loading {path} would run it again: it starts a session when imported")
        self.path = path


class BudgetExceeded(ProgramError):
    code = "budget_exceeded"
    hint = "Raise the budget, or look at ctx.budget_remaining() before asking."

    def __init__(self, message: str) -> None:
        super().__init__(f"budget_exceeded: {message}")


class TurnStopped(ProgramError):
    code = "turn_stopped"
    hint = "Look at what was said: everhold show. A retry asks the model again."

    def __init__(self, outcome: str, why: str = "") -> None:
        super().__init__(f"the turn of the agent ended as {outcome}" + (f": {why}" if why else ""))
        self.outcome = outcome


class AnswerFailed(ProgramError):
    """The answerer gave an error instead of a value; the program may catch it."""

    code = "answer_failed"
    hint = "A retry hands the error over again. To have it asked again, fork before it: `everhold explain` says where."

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.message, self.kind = message, kind


class BadDirective(ProgramError):
    code = "bad_directive"

    def __init__(self, plugin: str, hook: str, directive: str, allowed: list[str]) -> None:
        super().__init__(f"the plugin {plugin!r} returned {directive} from {hook}, where it makes no sense")
        self.plugin, self.hook, self.directive = plugin, hook, directive
        self.hint = f"There it may return: {', '.join(allowed)}, or None."


class PluginFailed(ProgramError):
    code = "plugin_failed"
    hint = "Mend the plugin and send the input again: the turn was stopped, because nothing goes on without it."

    def __init__(self, plugin: str, hook: str, error: str) -> None:
        super().__init__(f"the plugin {plugin!r} failed in {hook}: {error}")
        self.plugin, self.hook, self.error = plugin, hook, error


class OutcomeUnknown(ProgramError):
    code = "outcome_unknown"
    hint = "Find out whether it happened before doing it again."

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} was started, and the process died before its result was recorded")
        self.name = name


class Expired(ProgramError):
    code = "expired"

    def __init__(self, query_id: str) -> None:
        super().__init__(f"nobody answered {query_id!r} in time")
        self.query_id = query_id


class ChildFailed(ProgramError):
    code = "child_failed"

    def __init__(self, session_id: str, state: str, error: str) -> None:
        super().__init__(f"child session {session_id!r} {state}: {error}")
        self.session_id, self.state, self.error = session_id, state, error


class AfterCancel(ProgramError):
    code = "after_cancel"
    hint = "A cancelled program may clean up, but it can ask nothing more."

    def __init__(self, verb: str) -> None:
        super().__init__(f"ctx.{verb} after the session was cancelled")

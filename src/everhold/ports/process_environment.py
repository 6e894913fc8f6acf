"""The environment of the processes that tools start: working directory, variables and limits.

    agent = Agent(tools=[shell], environment=ProcessEnvironment(folder="/srv/shop", timeout=60))

Rules
  1. The agent has one, options of its sessions, frames and turns change it, and a subagent inherits
     its parent's. Nothing is started by everhold itself: a tool reads it, or calls `run`.
  2. What is set later overrides what was set before, folder by folder and name by name. A variable
     that is None is removed.
  3. A subagent cannot get wider limits than its parent: the smaller one holds.
"""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import DEVNULL, PIPE
from typing import Any, Final

import msgspec

from everhold.core.codec import JSON
from everhold.core.schema import PositiveInt, PositiveSeconds
from everhold.errors import BadArguments
from everhold.portability import kill_process_group

#: The option of sessions, frames and turns that changes the environment.
ENVIRONMENT: Final = "environment"
#: Seconds that the output of a killed process is still read.
CLOSE_SECONDS: Final = 1.0
_CHUNK: Final = 65_536


class KeptOutput:
    """The beginning of what a process writes; the rest is read and dropped."""

    def __init__(self, most: int | None) -> None:
        self.cut = False
        self._most = most
        self._kept = bytearray()

    async def read(self, pipe: asyncio.StreamReader | None) -> None:
        assert pipe is not None
        while part := await pipe.read(_CHUNK):
            self._kept += part
            if self._most is not None and len(self._kept) > self._most:
                del self._kept[self._most :]
                self.cut = True

    @property
    def text(self) -> str:
        return self._kept.decode("utf-8", "replace")


class ProcessResult(msgspec.Struct, frozen=True):
    """What a process came to. `code` is None if it was killed at its time limit."""

    code: int | None
    output: str
    errors: str
    truncated: bool = False


class ProcessEnvironment(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The environment of what tools start."""

    folder: str | None = None
    variables: dict[str, str | None] = {}
    inherit: bool = True  # whether the variables of this process are there too
    timeout: PositiveSeconds | None = None  # seconds that a process may run
    max_output: PositiveInt | None = None  # bytes of output and of errors that are kept, each

    def start_options(self) -> dict[str, Any]:
        """`cwd` and `env` for `subprocess.run` and `asyncio.create_subprocess_exec`."""
        given = {**(os.environ if self.inherit else {}), **self.variables}
        return {
            "cwd": self.folder,
            "env": {name: value for name, value in given.items() if value is not None},
        }

    async def run(self, *command: str, stdin: bytes | str = b"") -> ProcessResult:
        """Run a program in this environment. At its time limit, or if the caller is cancelled, it
        is killed with everything that it started.
        """
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=PIPE if stdin else DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
            start_new_session=True,
            **self.start_options(),
        )
        output = KeptOutput(self.max_output)
        errors = KeptOutput(self.max_output)
        reading = asyncio.gather(
            _write(process.stdin, stdin.encode() if isinstance(stdin, str) else stdin),
            output.read(process.stdout),
            errors.read(process.stderr),
        )
        code: int | None = None
        try:
            async with asyncio.timeout(self.timeout):
                await asyncio.shield(reading)
                code = await process.wait()
        except TimeoutError:
            pass
        finally:
            kill_process_group(process)
            await process.wait()
            # a process that left the group may still hold the pipes
            await asyncio.wait([reading], timeout=CLOSE_SECONDS)
            reading.cancel()
        return ProcessResult(code, output.text, errors.text, output.cut or errors.cut)


#: Nothing is set: processes start like those of this process.
NO_ENVIRONMENT: Final = ProcessEnvironment()


def merge_environment(
    lower: ProcessEnvironment, upper: ProcessEnvironment | None
) -> ProcessEnvironment:
    """Two environments as one: `upper` overrides `lower`, name by name."""
    if upper is None or upper == NO_ENVIRONMENT:
        return lower
    return ProcessEnvironment(
        folder=lower.folder if upper.folder is None else upper.folder,
        variables={**lower.variables, **upper.variables},
        inherit=lower.inherit and upper.inherit,
        timeout=lower.timeout if upper.timeout is None else upper.timeout,
        max_output=lower.max_output if upper.max_output is None else upper.max_output,
    )


def inherit_environment(parent: ProcessEnvironment, own: ProcessEnvironment) -> ProcessEnvironment:
    """The environment of a subagent: its own over its parent's, with the smaller limits."""
    return msgspec.structs.replace(
        merge_environment(parent, own),
        timeout=_smaller(parent.timeout, own.timeout),
        max_output=_smaller(parent.max_output, own.max_output),
    )


def parse_environment(given: JSON) -> ProcessEnvironment | None:
    """An environment from its option; raises `BadArguments`."""
    if given is None:
        return None
    try:
        found: ProcessEnvironment = msgspec.convert(given, ProcessEnvironment)
    except msgspec.ValidationError as error:
        raise BadArguments(ENVIRONMENT, str(error)) from None
    return found


def _smaller(one: Any, other: Any) -> Any:
    return other if one is None else one if other is None else min(one, other)


async def _write(pipe: asyncio.StreamWriter | None, given: bytes) -> None:
    if pipe is None:
        return
    try:
        pipe.write(given)
        await pipe.drain()
        pipe.close()
    except OSError:  # the program does not read its input
        pass

"""A Lua that nobody protects: python -m tests.fault.bare, and a line of JSON for each program to
run.

Each runs in a process of its own, whose number is told. It has the functions of `alc` as plain
Python functions, and gives the program's value to a host that takes it as it comes. Its report says
`ready` when it begins, and how it ended.
"""

import gc
import json
import os
import resource
import signal
import sys

import lupa.lua54

from tests.fault.attacks import PACKAGE

REPORT = 3  # the number of the file
ENTRIES = """function(value)
  local entries = {}
  for key, item in pairs(value) do entries[#entries + 1] = {key, item} end
  return entries
end"""
RUN = """function(code)
  local co = coroutine.create(function() return assert(load(code, "attack"))() end)
  local ok, first, second, third = coroutine.resume(co)
  if ok and coroutine.status(co) == "suspended" then return true, third end
  return ok, first
end"""


def say(**facts):
    os.write(REPORT, json.dumps(facts).encode() + b"\n")


class Host:
    """Takes what it is given."""

    def __init__(self):
        self.taken = 0
        self.lua = lupa.lua54.LuaRuntime()
        self.entries = self.lua.eval(ENTRIES)
        names = {
            "llm": self.llm,
            "llm_batch": self.batch,
            "log": self.log,
            "json_encode": self.encoded,
        }
        self.lua.globals().alc = self.lua.table_from(names)
        self.lua.globals().alc.stats = self.lua.table_from({"record": self.log})
        self.lua.globals().alc.state = self.lua.table_from({"set": self.log})
        self.lua.globals().alc.fork = self.fork

    def llm(self, prompt, options=None):
        self.taken += len(str(prompt))
        return "yes"

    def batch(self, items):
        self.taken += len(self.encoded(items))
        return "yes"

    def log(self, *words):
        self.taken += len(str(words))

    def fork(self, names, ctx, options=None):
        for _ in names.values():
            Host().lua.execute(PACKAGE)["run"](None)

    def encoded(self, value):
        return json.dumps(self.plain(value), allow_nan=False)

    def plain(self, value):
        if lupa.lua54.lua_type(value) != "table":
            return value
        return {str(entry[1]): self.plain(entry[2]) for entry in self.entries(value).values()}

    def run(self, code):
        say(ready=True)
        ok, value = self.lua.eval(RUN)(code)
        if isinstance(value, BaseException):
            raise value
        if ok:
            text = self.encoded(value)
            say(value=text[:1000], taken=self.taken + len(text))
        else:
            say(error=str(self.lua.globals().tostring(value)))


def run(job):
    """One program, to its end and that of its process."""
    report = os.open(job["report"], os.O_WRONLY | os.O_CREAT)
    os.dup2(report, REPORT)
    os.dup2(os.open(job["out"], os.O_WRONLY | os.O_CREAT), 1)
    resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
    try:
        Host().run(job["code"])
    except (MemoryError, lupa.lua54.LuaMemoryError):
        os.write(REPORT, b'{"memory": true}\n')
        os._exit(1)
    except BaseException as error:
        say(host=f"{type(error).__name__}: {error}"[:300])
    gc.collect()  # the Lua state is closed, with all that is left in it
    say(over=True)
    os._exit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            run(json.loads(line))
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()

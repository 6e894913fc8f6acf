"""The Lua library alone: its chunks in a bare Lua 5.4, with a small Layer 0 made of a JSON codec
and a dict.
"""

import json
from pathlib import Path
from typing import Any

import lupa.lua54 as lupa

import everhold.programs.lua as room
from everhold.cards.verbs import CardVerbs
from everhold.cards.view import CardView
from everhold.errors import UsageError

CHUNKS = ("text", "alc_math", "layer1", "cards")
FOLDER = Path(room.__file__).parent

_LAYER0 = """
local py = ...
local null, Array = io.stdout, {}   -- any userdata that is true will do as null
local alc, host = {}, {}

function alc.json_decode(text)
  local value, problem = py.decode(text)
  if problem then error(problem, 0) end
  return value
end
function alc.json_encode(value)
  local text, problem = py.encode(value)
  if problem then error(problem, 0) end
  return text
end
function alc.time() return py.time() end
function alc.log(level, words) py.log(level, words) end
function alc.llm(prompt, opts)
  local text, problem = py.llm(prompt, alc.json_encode(opts or {}))
  if problem then error(problem, 0) end
  return text
end
function alc.llm_batch(items)
  local out = {}
  for i, item in ipairs(items) do out[i] = alc.llm(item.prompt, item) end
  return out
end
function alc.budget_remaining() return py.budget() end

function host.state(op, namespace, key, value)
  local text = py.state(op, namespace, key, value ~= nil and alc.json_encode(value) or nil)
  if text == nil then return nil end
  return alc.json_decode(text)
end
function host.card(verb, name, value)
  local text, problem = py.card(verb, name, value ~= nil and alc.json_encode(value) or nil)
  if problem then error(problem, 0) end
  local found = alc.json_decode(text)
  if found ~= null then return found end
end
host.version, host.require, host.null, host.array = "9.9", require, null, Array
local loaded = {}
function host.part(name)
  loaded[name] = loaded[name] or load(py.text(name))(alc, host) or {}
  return loaded[name]
end
function host.home(_, names)
  return setmetatable({}, { __index = function(t, key)
    for _, name in ipairs(names) do
      host.part(name)
    end
    return rawget(t, key)
  end })
end
function host.unwatched(f, ...) return f(...) end
alc.state = {}
function alc.state.get(key, default)
  local found = host.state("get", "default", key)
  if found == nil then return default end
  return found
end
function alc.state.set(key, value) host.state("set", "default", key, value) end
return alc, host, null, Array
"""


class DictValues:
    """The durable values of one step, on a dict of JSON texts."""

    def __init__(self, stored: dict[tuple[str, str], str]) -> None:
        self._stored = stored
        self.written: dict[tuple[str, str], str] = {}

    async def found(self, namespace: str, key: str) -> list[Any] | None:
        text = (self._stored | self.written).get((namespace, key))
        return None if text is None else [json.loads(text)]

    async def scan(self, namespace: str, prefix: str) -> list[tuple[str, Any]]:
        return [
            (key, json.loads(text))
            for (space, key), text in sorted((self._stored | self.written).items())
            if space == namespace and key.startswith(prefix)
        ]

    async def put(self, namespace: str, key: str, value: Any) -> None:
        self.written[namespace, key] = json.dumps(value)


class Library:
    """One VM with the library; `prompts` and `logged` tell what programs did, `values` what they
    keep.
    """

    def __init__(self, values: dict[tuple[str, str], str] | None = None) -> None:
        self.values = {} if values is None else values
        self.now = 1_800_000_000.25
        self.prompts: list[tuple[str, dict[str, Any]]] = []
        self.logged: list[tuple[str, str]] = []
        self.questions = 0  # to the state
        self.answers: Any = lambda prompt: f"re: {prompt}"
        self.left: dict[str, Any] | None = None
        self.lua = lupa.LuaRuntime(unpack_returned_tuples=True, encoding="utf-8")
        self.alc, self.host, self.null, self.array = self.lua.execute(
            _LAYER0, self.lua.table_from(self._doors())
        )
        for name in CHUNKS:
            self.host.part(name)
        self.lua.globals().alc = self.alc
        self.lua.globals().null = self.null

    def run(self, code: str) -> Any:
        """What the code returns, as JSON sees it; several values are a list."""
        wrapped = self.lua.execute(f"return table.pack((function()\n{code}\nend)())")
        found = [self._plain(wrapped[i]) for i in range(1, wrapped["n"] + 1)]
        return found[0] if len(found) == 1 else found or None

    def error(self, code: str) -> str:
        """What the code fails with."""
        ok, words = self.lua.execute(f"return pcall(function()\n{code}\nend)")
        assert not ok, words
        return str(words)

    def _doors(self) -> dict[str, Any]:
        return {
            "text": lambda name: (FOLDER / f"{name}.lua").read_text(),
            "decode": self._decode,
            "encode": self._encode,
            "time": lambda: self.now,
            "log": lambda level, words: self.logged.append((level, words)),
            "llm": self._llm,
            "budget": self._budget,
            "state": self._state,
            "card": self._card,
        }

    def _llm(self, prompt: str, opts: str) -> tuple[str | None, str | None]:
        self.prompts.append((prompt, json.loads(opts)))
        answer = self.answers(prompt)
        return (None, str(answer)) if isinstance(answer, Exception) else (answer, None)

    def _budget(self) -> Any:
        if self.left is None:
            return None
        return self.lua.table_from(
            {name: self.null if left is None else left for name, left in self.left.items()}
        )

    def _state(self, op: str, namespace: str, key: str, value: str | None) -> str | None:
        self.questions += 1
        place = (namespace, key)
        found = self.values.get(place)
        match op:
            case "get":
                return found
            case "set":
                assert value is not None
                self.values[place] = value
                return None
            case "set_nx":
                assert value is not None
                self.values.setdefault(place, value)
                return json.dumps(found is None)
            case "scan":
                pairs = [
                    [k, json.loads(v)]
                    for (room, k), v in sorted(self.values.items())
                    if room == namespace
                ]
                return json.dumps([pair for pair in pairs if pair[0].startswith(key)])
        raise AssertionError(op)

    # ---- cards, as the engine answers them: one step for each query

    def _card(self, verb: str, name: str, value: str | None) -> tuple[str | None, str | None]:
        self.questions += 1
        step = DictValues(self.values)
        verbs = CardVerbs(CardView(step, None), self.now, "9.9")
        given = None if value is None else json.loads(value)
        try:
            verbs.run(verb, name, given).send(None)  # nothing in it waits
            raise AssertionError(verb)
        except StopIteration as done:
            found = done.value
        except UsageError as error:
            return None, f"alc.card.{verb}: {error}"
        self.values.update(step.written)
        return json.dumps(found), None

    # ---- a plain codec: arrays have a metatable, null is a userdata

    def _decode(self, text: str) -> tuple[Any, str | None]:
        try:
            return self._table(json.loads(text)), None
        except ValueError as error:
            return None, f"not JSON: {error}"

    def _table(self, value: Any) -> Any:
        if value is None:
            return self.null
        if isinstance(value, list):
            made = self.lua.table_from([self._table(item) for item in value])
            return self.lua.globals().setmetatable(made, self.array)
        if isinstance(value, dict):
            return self.lua.table_from({name: self._table(item) for name, item in value.items()})
        return value

    def _encode(self, value: Any) -> tuple[str | None, str | None]:
        try:
            return json.dumps(
                self._plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False
            ), None
        except TypeError as error:
            return None, str(error)

    def _plain(self, value: Any) -> Any:
        kind, lua = lupa.lua_type(value), self.lua.globals()
        if kind is None:
            return value
        if kind != "table":
            if lua.rawequal(value, self.null):
                return None
            raise TypeError(f"a {kind} is not JSON")
        if len(value) or lua.rawequal(lua.getmetatable(value), self.array):
            return [self._plain(value[i]) for i in range(1, len(value) + 1)]
        return {str(key): self._plain(item) for key, item in value.items()}

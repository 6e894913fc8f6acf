-- Protected calls with a handler, and coroutines. A part of the sandbox: it gets the kit.

local kit = ...

local type, error, raw_pcall, create, resume = type, error, kit.raw_pcall, kit.create, kit.resume
local status, close, running, yield = kit.status, kit.close, kit.running, kit.yield
local checked, caught, passed, expected, REQUEST = kit.checked, kit.caught, kit.passed, kit.expected, kit.REQUEST

local own = {}

-- A handler runs after the stack was unwound, so that it may make queries, too.

local function false_and(_, value)
  return false, value
end

local function handled(handler, ok, ...)
  if ok then
    return true, ...
  end
  return checked(false_and(raw_pcall(handler, ...)))
end

function own.xpcall(f, handler, ...)
  if type(handler) ~= "function" then
    expected(2, "xpcall", "function", handler)
  end
  return handled(handler, caught(raw_pcall(f, ...)))
end

-- Coroutines

local library = { status = status }
own.coroutine = library

local function made(name, f)
  if type(f) ~= "function" then
    return expected(1, name, "function", f)
  end
  local co = create(f)
  kit.sethook(co, kit.strike, "", kit.every)
  return co
end

local function relay(co, ok, ...)
  if ok and (...) == REQUEST then
    return relay(co, resume(co, yield(...)))
  end
  return caught(ok, ...)
end

local LANGUAGE = { "layer0", "json", "tostring", "pairs", "json_decode", "output", "strings", "system", "tables" }

-- Close a coroutine. C runs its __close handlers, which cannot make queries, so all parts are loaded before.
local function ended(co)
  for i = 1, #LANGUAGE do
    kit.part(LANGUAGE[i])
  end
  return raw_pcall(close, co)
end

local function unwrapped(co, ok, ...)
  if ok then
    return ...
  end
  local problem = ...
  if status(co) == "dead" then
    ended(co)
  end
  error(problem, type(problem) == "string" and 2 or 0)
end

function library.create(f)
  local co = made("create", f)
  return co
end

function library.resume(co, ...)
  if type(co) ~= "thread" then
    expected(1, "resume", "thread", co)
  end
  return relay(co, resume(co, ...))
end

function library.wrap(f)
  local co = made("wrap", f)
  return function(...)
    return unwrapped(co, relay(co, resume(co, ...)))
  end
end

function library.yield(...)
  if running() == kit.main then
    error("attempt to yield from outside a coroutine", 0)
  end
  return yield(...)
end

function library.close(co)
  return checked(passed("close", ended(co)))
end

function library.running()
  local co = running()
  return co, co == kit.main
end

function library.isyieldable(co)
  return (co or running()) ~= kit.main
end

return own

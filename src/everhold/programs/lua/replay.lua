-- Goes through what was answered before, many steps at once: each of them would else be a way out of Lua and back.
--
-- A chunk: `local go, seconds = ...`, and then for each step its time, its answer, and the question that comes next. As
-- long as the program asks just that, and says nothing, it gets the next answer. Returns how many steps were taken, and
-- what `go` says of the last one. It uses nothing that a program could have spoilt.

local go, seconds = ...

local function after(_, _, ...)
  return { ... }
end

local given, place = after(...), 1
local last = #given - 2

local function went(noisy, kind, ...)
  local asked, system, tokens, grounded = ... -- of a question that is no more than words there is only the first
  if place < last and not noisy and kind == "llm" and asked == given[place + 2] then
    if system == nil and tokens == nil and grounded == nil then
      place = place + 3
      return went(go(given[place], seconds, true, given[place + 1]))
    end
  end
  return (place + 2) // 3, noisy, kind, ...
end

return went(go(given[1], seconds, true, given[2]))

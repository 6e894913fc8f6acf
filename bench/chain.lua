-- The program that everhold plays in Lua: the same questions as bench/programs.py, and the same sum.

local M = {}

function M.run(ctx)
  local total = 0
  for n = 0, ctx.pauses - 1 do
    total = total + #alc.llm(string.format("%04d ", n % 1000) .. string.rep("p", 195))
  end
  return total
end

return M

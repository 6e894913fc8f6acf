--- Asks three voices at once and counts.
local count = require("careful.lib.count")

local M = {
  meta = { name = "careful", version = "0.3.1", description = "Three voices, one verdict.", category = "vote" },
}

function M.run(ctx)
  local items = {}
  for i = 1, 3 do
    items[i] = { prompt = "Voice " .. i .. ": " .. ctx.task }
  end
  ctx.result = count(alc.llm_batch(items))
  return ctx
end

return M

--- Asks twice: a draft, and a better one.
local M = {}

M.meta = {
  name = "twice",
  version = "1.2.0",
  description = "Drafts an answer and improves it once.",
  category = "refine",
}

function M.run(ctx)
  local draft = alc.llm("Draft: " .. ctx.task)
  ctx.result = alc.llm("Improve: " .. draft, { system = "Be brief.", max_tokens = 256 })
  alc.state.incr("runs")
  return ctx
end

return M

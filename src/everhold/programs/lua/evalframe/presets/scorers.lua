-- Scorers for usual scales.

local scorer = require("evalframe.model.scorer")

return {
  bool = scorer.default_bool,
  linear_1_5 = scorer "linear_1_5" { min = 1, max = 5 },
  linear_1_10 = scorer "linear_1_10" { min = 1, max = 10 },
  linear_0_100 = scorer "linear_0_100" { min = 0, max = 100 },
  pass_50 = scorer "pass_50" { pass = 0.5 },
  pass_80 = scorer "pass_80" { pass = 0.8 },
  band_1_5 = scorer "band_1_5" { steps = { { 1, 0 }, { 3, 0.5 }, { 4, 1 } } },
  -- Less is better: 1 at 0, one half at 1000.
  inverse_linear = scorer "inverse_linear" {
    score = function(grade)
      if type(grade) ~= "number" then
        error("it needs a number, got " .. type(grade), 0)
      end
      return 1000 / (1000 + math.max(0, grade))
    end,
  },
}

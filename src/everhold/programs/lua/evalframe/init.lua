-- evalframe: cases, graders and scorers, and suites that measure a strategy with them.

local variants = require("evalframe.variants")

local ef = {
  suite = require("evalframe.eval"),
  report = require("evalframe.eval.report"),
  stats = require("evalframe.eval.stats"),
  load_cases = require("evalframe.eval.loader").load_file,
  case = require("evalframe.model.case"),
  grader = require("evalframe.model.grader"),
  scorer = require("evalframe.model.scorer"),
  bind = require("evalframe.model.binding"),
  variants = variants.generate,
  vary = variants.vary,
  graders = require("evalframe.presets.graders"),
  scorers = require("evalframe.presets.scorers"),
  llm_graders = require("evalframe.presets.llm_graders"),
  std = require("evalframe.std"),
  providers = {
    algocline = require("evalframe.providers.algocline"),
    mock = require("evalframe.providers.mock"),
  },
}

function ef.providers.claude_cli()
  error("providers.claude_cli: programs run no commands; use ef.providers.algocline.llm(), which asks your model", 2)
end

return ef

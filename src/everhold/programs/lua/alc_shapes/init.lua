--- Schemas for what packages take and return.
---
--- Used if no package `alc_shapes` is installed. It has the interface of version 0.25.1 of that package, and
--- the named shapes of its collection.

local T = require("alc_shapes.t")
local check = require("alc_shapes.check")
local reflect = require("alc_shapes.reflect")

local S = { VERSION = "0.25.1" }

-- Named shapes. A package may say `result = "voted"`.

local counts = T.map_of(T.string, T.number)
local texts = T.array_of(T.string)

S.voted = T.shape({
  answer = T.string:is_optional():describe("The answer of most paths; absent if they do not agree"),
  answer_norm = T.string:is_optional():describe("The answer as it was counted"),
  consensus = T.string:describe("What the majority says, in the words of the model"),
  n_sampled = T.number:describe("How many paths were asked"),
  paths = T.array_of(T.shape({ answer = T.string, reasoning = T.string })):describe("Each path"),
  total_llm_calls = T.number,
  vote_counts = counts:describe("Votes by answer"),
  votes = texts:describe("The vote of each path, as it was counted"),
})

S.paneled = T.shape({
  arguments = T.array_of(T.shape({ role = T.string, text = T.string })):describe("What each role said"),
  synthesis = T.string:describe("What the moderator concludes"),
})

S.assessed = T.shape({
  answer = T.string,
  confidence = T.number:describe("From 0 to 1, as the model sees it"),
  total_llm_calls = T.number,
})

S.calibrated = T.shape({
  answer = T.string,
  confidence = T.number:describe("The first confidence"),
  escalated = T.boolean:describe("Whether the fallback was used"),
  fallback_detail = T.table:is_optional():describe("The result of the fallback"),
  strategy = T.one_of({ "direct", "retry", "panel", "ensemble" }),
  total_llm_calls = T.number,
})

local card = T.string:is_optional():describe("The card that was made, if one was asked for")

S.conformal_decided = T.shape({
  action = T.one_of({ "commit", "escalate", "anomaly" }):describe("The decision"),
  card_id = card,
  coverage_level = T.number:describe("1 - alpha"),
  p_social = counts:describe("Probability by label"),
  prediction_set = texts:describe("Labels that reach tau"),
  q_hat = T.number:describe("The quantile of the calibration"),
  selected = T.string:is_optional():describe("The label, if it commits to one"),
  tau = T.number:describe("1 - q_hat"),
})

S.deliberated = T.shape({
  answer = T.string:describe("The answer of the chosen option"),
  card_id = card,
  convergence = T.one_of({ "dominance", "no_blocking", "fallback" }):describe("How it ended"),
  decision_packet = T.shape({
    minority_report = T.array_of(T.shape({ confidence = T.number, position = T.string, rationale = T.string })),
    next_actions = texts,
    reopen_triggers = texts,
    residual_objections = texts,
    selected_option = T.shape({ answer = T.string, evidence = texts, rationale = T.string }),
  }):describe("The decision with its five parts"),
  history = T.array_of(T.table):describe("The acts of each stage"),
  stats = T.shape({
    options_count = T.number, rounds_used = T.number, total_acts = T.number, total_llm_calls = T.number,
  }):describe("Counts"),
  workspace = T.shape({
    emerging_ideas = texts,
    key_frames = texts,
    next_actions = texts,
    problem_view = T.string,
    synthesis_in_progress = T.string,
    tensions = texts,
  }):describe("The shared workspace at the end"),
})

S.smc_sampled = T.shape({
  answer = T.string:describe("The answer with the largest weight"),
  card_id = card,
  ess_trace = T.array_of(T.number):describe("The effective sample size of each round"),
  iterations = T.number:describe("Rounds"),
  particles = T.array_of(T.shape({
    answer = T.string, history = T.array_of(T.table), reward = T.number, weight = T.number,
  })):describe("All particles at the end"),
  resample_count = T.number:describe("Rounds that resampled"),
  stats = T.shape({ total_llm_calls = T.number, total_reward_calls = T.number }):describe("Counts"),
  weights = T.array_of(T.number):describe("The weights; their sum is about 1"),
})

S.tournament = T.shape({
  best = T.string:describe("The winner"),
  best_index = T.number:describe("Its place among the candidates, from 1"),
  candidates = texts,
  matches = T.array_of(T.shape({ a = T.number, b = T.number, reason = T.string, winner = T.number })),
  total_wins = T.number:describe("How many matches it won"),
})

local function ranking(fields)
  local item = { index = T.number, rank = T.number, text = T.string, score = fields.score }
  fields.score = nil
  for _, name in ipairs({ "ranked", "top_k", "killed" }) do
    fields[name] = T.array_of(T.shape(item))
  end
  fields.best = T.string:describe("The first of the ranking")
  fields.best_index = T.number:describe("Its place among the candidates, from 1")
  fields.n_candidates = T.number
  fields.total_llm_calls = T.number
  return T.shape(fields)
end

S.listwise_ranked = ranking({})
S.pairwise_ranked = ranking({
  score = T.number,
  both_tie_pairs = T.number:describe("Pairs that tied both ways round"),
  method = T.one_of({ "allpair", "sorting" }),
  position_bias_splits = T.number:describe("Pairs whose winner depended on the order"),
  score_semantics = T.one_of({ "copeland", "rank_inverse" }),
})

-- A stage of a recipe: `name` says which other fields it has.
local function stages(of, common)
  local variants = {}
  for name, fields in pairs(of) do
    local whole = { name = T.one_of({ name }) }
    for field, schema in pairs(common) do
      whole[field] = schema
    end
    for field, schema in pairs(fields) do
      whole[field] = schema
    end
    variants[name] = T.shape(whole)
  end
  return T.array_of(T.discriminated("name", variants))
end

local pairs_stage = { both_tie_pairs = T.number, position_bias_splits = T.number }

S.funnel_ranked = T.shape({
  best = T.string:describe("The first of the ranking"),
  best_index = T.number:describe("Its place among the candidates, from 1"),
  bypass_reason = T.string:is_optional(),
  funnel_bypassed = T.boolean:describe("Whether there were too few candidates for a funnel"),
  funnel_shape = T.array_of(T.number):describe("Candidates before and after each stage"),
  naive_baseline_calls = T.number,
  naive_baseline_kind = T.string,
  ranking = T.array_of(T.shape({
    original_index = T.number, pairwise_score = T.number, rank = T.number, text = T.string,
  })),
  savings_percent = T.number:is_optional(),
  stages = stages({
    direct_pairwise = pairs_stage,
    listwise_rank = { window_size = T.number },
    listwise_skipped = { reason = T.string },
    multi_axis_scoring = {
      axes_count = T.number, parse_failures = T.number, score_range = T.shape({ max = T.number, min = T.number }),
    },
    pairwise_rank_allpair = pairs_stage,
    scoring_skipped = { reason = T.string },
  }, { input_count = T.number, llm_calls = T.number, output_count = T.number }),
  total_llm_calls = T.number,
  warnings = T.array_of(T.shape({
    code = T.string, data = T.table, message = T.string, severity = T.one_of({ "warn", "critical" }),
  })),
})

local function panel(fields)
  fields.abort_reason = T.string:is_optional():describe("Why it was aborted")
  fields.aborted = T.boolean
  fields.anti_jury = T.boolean
  fields.confidence = T.number
  fields.expected_accuracy = T.number
  fields.margin_gap = T.number:describe("Share of the first answer minus that of the second")
  fields.n_distinct_answers = T.number
  fields.needs_investigation = T.boolean
  fields.panel_size = T.number
  fields.plurality_fraction = T.number:describe("Share of the first answer")
  fields.target_met = T.boolean
  fields.total_llm_calls = T.number
  fields.unanimous = T.boolean
  fields.vote_counts = counts:describe("Votes by answer")
  return T.shape(fields)
end

S.safe_paneled = panel({
  answer = T.string:is_optional():describe("The answer; absent if it was aborted"),
  is_safe = T.boolean,
  stages = stages({
    calibrate = {
      confidence = T.number, escalated = T.boolean, llm_calls = T.number, needs_investigation = T.boolean,
      threshold = T.number,
    },
    condorcet = {
      expected_accuracy = T.number, p_estimate = T.number, recommended_n = T.number, target_accuracy = T.number,
      target_met = T.boolean,
    },
    condorcet_anti_jury = { is_anti_jury = T.boolean, p_estimate = T.number },
    condorcet_coin_flip = { is_anti_jury = T.boolean, p_estimate = T.number },
    sc = {
      answer = T.string, llm_calls = T.number, margin_gap = T.number, n_distinct_answers = T.number,
      panel_size = T.number, plurality_fraction = T.number, unanimous = T.boolean,
    },
    vote_prefix_stability = {
      consecutive_drops = T.number, is_safe = T.boolean, peak_idx = T.number, series_length = T.number,
      signal_type = T.string,
    },
    vote_prefix_stability_skipped = {
      is_safe = T.boolean, reason = T.string, series_length = T.number, signal_type = T.string,
    },
  }, {}),
})

S.deep_paneled = panel({
  answer = T.any:describe("The answer; absent if it was aborted"),
  branches = T.table,
  decomp = T.table:is_optional(),
  diversity = T.table:is_optional(),
  n_branches_completed = T.number,
  stages = T.array_of(T.table),
})

S.quick_voted = T.shape({
  answer = T.string:describe("The answer of the first sample"),
  leader_norm = T.string:describe("The answer as it was counted"),
  n_samples = T.number,
  needs_investigation = T.boolean:describe("Whether the evidence was not enough for a verdict"),
  outcome = T.one_of({ "confirmed", "rejected", "truncated" }),
  params = T.shape({
    alpha = T.number, beta = T.number, max_n = T.number, min_n = T.number, p0 = T.number, p1 = T.number,
  }),
  samples = T.array_of(T.shape({ answer = T.string, norm = T.string, reasoning = T.string })),
  sprt = T.shape({ a_bound = T.number, b_bound = T.number, log_lr = T.number, n = T.number }),
  total_llm_calls = T.number,
  verdict = T.one_of({ "accept_h1", "accept_h0", "continue" }),
  vote_counts = counts:describe("Votes by answer"),
})

S.T = T
S.check, S.assert, S.assert_dev, S.is_dev_mode = check.check, check.assert, check.assert_dev, check.is_dev_mode
S.fields, S.walk, S.is_schema = reflect.fields, reflect.walk, T._internal.is_schema
S.LuaCats = require("alc_shapes.luacats")
S.spec_resolver = require("alc_shapes.spec_resolver")
S.instrument = require("alc_shapes.instrument").instrument

return S

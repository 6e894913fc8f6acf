---@meta
-- The `alc` API of Lua programs, for editors that read LuaCATS annotations (lua-language-server).
-- Point the editor at this folder: { "workspace.library": ["<home>/types"] } in .luarc.json.

---The arguments of this session. A package gets them as the argument of `run`.
---@type table<string, any>
ctx = {}

---A number, a string, a boolean, `alc.null`, an array of them or a table with string keys: all that JSON can represent.
---@alias alc.Json any

---@class alc.LlmOptions
---@field system? string the system prompt
---@field max_tokens? integer the limit of the answer in tokens; default 1024
---@field grounded? boolean the answer should rest on sources
---@field underspecified? boolean the prompt is incomplete; a person may have to be asked
---@field model? string passed on to the answerer, like every other option
---@field temperature? number

---@class alc.CacheOptions: alc.LlmOptions
---@field cache_key? string
---@field cache_skip? boolean do not use or fill the cache

---@class alc.Item: alc.LlmOptions
---@field prompt string

---@class alc.ForkResult
---@field strategy string
---@field ok boolean
---@field result? alc.Json
---@field error? string

---@class alc.Remaining
---@field llm_calls integer|alc.Null
---@field elapsed_ms integer|alc.Null
---@field tokens integer|alc.Null

---@class alc.Null: userdata

---@class alc.LogLevels
---@field debug fun(text: string)
---@field info fun(text: string)
---@field warn fun(text: string)
---@field error fun(text: string)
---@overload fun(level: string, text: string)

---@class alc.Vote
---@field winner string?
---@field count integer
---@field total integer

---@class alc
---@field null alc.Null null in JSON: true, and equal only to itself
---@field log alc.LogLevels
---@field _dirs { state: string, cards: string, scenarios: string }
alc = {}

-- Layer 0

---Ask, and wait for the answer for as long as it takes.
---@param prompt string
---@param opts? alc.LlmOptions
---@return string
function alc.llm(prompt, opts) end

---Ask all at once; the answers come in the order of the items.
---@param items alc.Item[]
---@return string[]
function alc.llm_batch(items) end

---Run packages side by side, each with a copy of `ctx`.
---@param strategies string[]
---@param ctx table
---@param opts? { on_error?: "abort"|"fail"|"continue" }
---@return alc.ForkResult[]
function alc.fork(strategies, ctx, opts) end

---@param value alc.Json
---@return string
function alc.json_encode(value) end

---@param text string
---@return alc.Json
function alc.json_decode(text) end

---@param step integer
---@param total integer 0 if unknown
---@param text? string
function alc.progress(step, total, text) end

---Seconds since 1970, from the journal.
---@return number
function alc.time() end

---@return alc.Remaining?
function alc.budget_remaining() end

---Split a text into pieces of `size` lines or characters.
---@param text string
---@param opts? { mode?: "lines"|"chars", size?: integer, overlap?: integer }
---@return string[]
function alc.chunk(text, opts) end

---The candidate that occurs last, else the one most similar to a word of the text.
---@param text string
---@param candidates string[]
---@param opts? { threshold?: number }
---@return string?
function alc.match_enum(text, candidates, opts) end

---@param text string
---@return boolean?
function alc.match_bool(text) end

---Durable values, shared by the sessions of a namespace.
---@class alc.state
alc.state = {}

---@param key string
---@param default? alc.Json
---@return alc.Json
function alc.state.get(key, default) end

---@param key string
---@param value alc.Json
function alc.state.set(key, value) end

---@return string[]
function alc.state.keys() end

---@param key string
---@return boolean existed
function alc.state.delete(key) end

---@param key string
---@return boolean
function alc.state.has(key) end

---@param key string
---@param value alc.Json
---@return boolean was_set
function alc.state.set_nx(key, value) end

---@param key string
---@param delta? number
---@param default? number
---@return number
function alc.state.incr(key, delta, default) end

---Read a value, call `f`, write its result; returns the written value.
---@param key string
---@param f fun(value: alc.Json): alc.Json
---@param default? alc.Json
---@return alc.Json
function alc.state.update(key, f, default) end

---Values recorded for this session.
---@class alc.stats
alc.stats = {}

---@param key string
---@param value alc.Json
function alc.stats.record(key, value) end

---@param key string
---@return alc.Json
function alc.stats.get(key) end

-- Layer 1

---As `alc.llm`, but the session sends the same prompt only once.
---@param prompt string
---@param opts? alc.CacheOptions
---@return string
function alc.cache(prompt, opts) end

---@return { entries: integer, hits: integer, misses: integer, max_entries: integer }
function alc.cache_info() end

function alc.cache_clear() end

---@generic T, R
---@param list T[]
---@param f fun(item: T, i: integer): R
---@return R[]
function alc.map(list, f) end

---@generic T
---@param list T[]
---@param f fun(item: T, i: integer): boolean
---@return T[]
function alc.filter(list, f) end

---@generic T, A
---@param list T[]
---@param f fun(acc: A, item: T, i: integer): A
---@param init? A
---@return A
function alc.reduce(list, f, init) end

---@param answers string[]
---@return alc.Vote
function alc.vote(answers) end

---@param prompt string
---@param opts? alc.LlmOptions
---@return string
function alc.ground(prompt, opts) end

---@param prompt string
---@param opts? alc.LlmOptions
---@return string
function alc.specify(prompt, opts) end

---The first digits, as 1 to 10.
---@param text string
---@param default? number
---@return number
function alc.parse_score(text, default) end

---@param text string
---@param pattern? string
---@return number?
function alc.parse_number(text, pattern) end

---The first table of JSON in a text.
---@param text string
---@return table?
function alc.json_extract(text) end

---As `alc.llm`; returns the default instead of an error.
---@param prompt string
---@param opts? alc.LlmOptions
---@param default? alc.Json
---@return alc.Json
function alc.llm_safe(prompt, opts, default) end

---Ask and parse JSON from the answer; without JSON, ask once for a corrected answer.
---@param prompt string
---@param opts? alc.LlmOptions
---@return table? value
---@return string raw
function alc.llm_json(prompt, opts) end

---@param text string
---@return string
function alc.fingerprint(text) end

---Whether calls, time and tokens are left.
---@return boolean
function alc.budget_check() end

---The defaults, overridden by the same keys of `ctx`.
---@param defaults table
---@param ctx table
---@param opts? { prefix?: string }
---@return table
function alc.tuning(defaults, ctx, opts) end

---One batch: a prompt for each item.
---@generic T
---@param items T[]
---@param prompt_fn fun(item: T, i: integer): string|alc.Item
---@param opts? { system?: string, max_tokens?: integer, post_fn?: fun(answer: string, item: T, i: integer): any }
---@return any[]
function alc.parallel(items, prompt_fn, opts) end

---Packages or functions one after the other: the `result` of one is the `task` of the next.
---@param strategies (string|fun(ctx: table): table)[]
---@param ctx table
---@param opts? { on_stage?: fun(i: integer, name: string, ctx: table), on_error?: "abort"|"skip"|"continue" }
---@return table ctx
function alc.pipe(strategies, ctx, opts) end

---@param scenario string|table
---@param strategy string
---@param opts? { strategy_opts?: table, auto_card?: boolean, card_pkg?: string }
---@return table report
function alc.eval(scenario, strategy, opts) end

---@class alc.Rng

---@class alc.math
alc.math = {}

---@param seed integer
---@return alc.Rng
function alc.math.rng_create(seed) end

---@param rng alc.Rng
---@return number 0 <= x < 1
function alc.math.rng_float(rng) end

---@param rng alc.Rng
---@param min integer
---@param max integer
---@return integer
function alc.math.rng_int(rng, min, max) end

---@generic T
---@param rng alc.Rng
---@param list T[]
---@return T[] a shuffled copy
function alc.math.shuffle(rng, list) end

---@generic T
---@param rng alc.Rng
---@param list T[]
---@param n integer
---@return T[]
function alc.math.sample_with_replacement(rng, list, n) end

---@param rng alc.Rng
---@param mean number
---@param stddev number
---@return number
function alc.math.normal_sample(rng, mean, stddev) end

---@param rng alc.Rng
---@param mu number
---@param sigma number
---@return number
function alc.math.lognormal_sample(rng, mu, sigma) end

---@param rng alc.Rng
---@param low number
---@param high number
---@return number
function alc.math.uniform_sample(rng, low, high) end

---@param rng alc.Rng
---@param lambda number
---@return number
function alc.math.exp_sample(rng, lambda) end

---@param rng alc.Rng
---@param shape number
---@param scale number
---@return number
function alc.math.gamma_sample(rng, shape, scale) end

---@param rng alc.Rng
---@param alpha number
---@param beta number
---@return number
function alc.math.beta_sample(rng, alpha, beta) end

---@param rng alc.Rng
---@param df number
---@return number
function alc.math.chi_squared_sample(rng, df) end

---@param rng alc.Rng
---@param df number
---@return number
function alc.math.student_t_sample(rng, df) end

---@param rng alc.Rng
---@param lambda number
---@return integer
function alc.math.poisson_sample(rng, lambda) end

---@param rng alc.Rng
---@param n integer
---@param p number
---@return integer
function alc.math.binomial_sample(rng, n, p) end

---@param rng alc.Rng
---@param alphas number[]
---@return number[]
function alc.math.dirichlet_sample(rng, alphas) end

---@param rng alc.Rng
---@param weights number[]
---@return integer from 1
function alc.math.categorical_sample(rng, weights) end

---@param list number[]
---@return number
function alc.math.mean(list) end

---@param list number[]
---@return number
function alc.math.median(list) end

---@param list number[]
---@return number
function alc.math.variance(list) end

---@param list number[]
---@return number
function alc.math.stddev(list) end

---@param list number[]
---@return number
function alc.math.iqr(list) end

---@param list number[]
---@param p number 0 to 100
---@return number
function alc.math.percentile(list, p) end

---@param xs number[]
---@param ys number[]
---@return number
function alc.math.covariance(xs, ys) end

---@param xs number[]
---@param ys number[]
---@return number
function alc.math.correlation(xs, ys) end

---@param xs number[]
---@param ys number[]
---@return number
function alc.math.spearman_correlation(xs, ys) end

---@param xs number[]
---@param ys number[]
---@return number
function alc.math.kendall_tau(xs, ys) end

---@param list number[]
---@return number[]
function alc.math.softmax(list) end

---@param list number[]
---@return number[]
function alc.math.log_normalize(list) end

---@param list number[]
---@return number[]
function alc.math.rank(list) end

---@param list number[]
---@return number
function alc.math.logsumexp(list) end

---@param list number[]
---@param bins integer
---@return { counts: integer[], edges: number[] }
function alc.math.histogram(list, bins) end

---@param list number[]
---@param window integer
---@return number[]
function alc.math.moving_average(list, window) end

---@param list number[]
---@param alpha number 0 to 1
---@return number[]
function alc.math.ewma(list, alpha) end

---@param list number[]
---@param lag integer
---@return number
function alc.math.autocorrelation(list, lag) end

---@param n integer 1 to 8
---@return integer[][]
function alc.math.permutations(n) end

---@param relevance number[]
---@param k integer
---@return number
function alc.math.ndcg(relevance, k) end

---@param ranks integer[]
---@return number
function alc.math.mrr(ranks) end

---@param shares number[]
---@return number nats
function alc.math.entropy(shares) end

---@param p number[]
---@param q number[]
---@return number nats
function alc.math.kl_divergence(p, q) end

---@param p number[]
---@param q number[]
---@return number nats
function alc.math.js_divergence(p, q) end

---@param p number[]
---@param q number[]
---@return number nats
function alc.math.cross_entropy(p, q) end

---@param x number
---@param mu? number
---@param sigma? number
---@return number
function alc.math.normal_cdf(x, mu, sigma) end

---@param p number
---@param mu? number
---@param sigma? number
---@return number
function alc.math.normal_inverse_cdf(p, mu, sigma) end

---@param p number
---@return number
function alc.math.normal_ppf(p) end

---@param x number
---@param alpha number
---@param beta number
---@return number
function alc.math.beta_cdf(x, alpha, beta) end

---@param p number
---@param alpha number
---@param beta number
---@return number
function alc.math.beta_ppf(p, alpha, beta) end

---@param alpha number
---@param beta number
---@return number
function alc.math.beta_mean(alpha, beta) end

---@param alpha number
---@param beta number
---@return number
function alc.math.beta_variance(alpha, beta) end

---@param x number
---@param shape number
---@param scale number
---@return number
function alc.math.gamma_cdf(x, shape, scale) end

---@param k integer
---@param lambda number
---@return number
function alc.math.poisson_cdf(k, lambda) end

---@param x number
---@return number
function alc.math.erf(x) end

---@param x number
---@return number
function alc.math.erfc(x) end

---@param x number
---@return number
function alc.math.lgamma(x) end

---@param x number
---@return number
function alc.math.digamma(x) end

---@param x number
---@return number
function alc.math.expit(x) end

---@param p number
---@return number
function alc.math.logit(p) end

---@param a number
---@param b number
---@return number
function alc.math.beta(a, b) end

---@param a number
---@param b number
---@return number
function alc.math.ln_beta(a, b) end

---@param x number
---@param a number
---@param b number
---@return number
function alc.math.regularized_incomplete_beta(x, a, b) end

---@param a number
---@param x number
---@return number
function alc.math.regularized_incomplete_gamma(a, x) end

---@param n integer
---@return number
function alc.math.factorial(n) end

---@param n integer
---@return number
function alc.math.ln_factorial(n) end

---@param hits number
---@param total number
---@param confidence? number
---@return { lower: number, upper: number, center: number }
function alc.math.wilson_ci(hits, total, confidence) end

---@param xs number[]
---@param ys number[]
---@return { t_stat: number, df: number, p_value: number }
function alc.math.welch_t_test(xs, ys) end

---@param xs number[]
---@param ys number[]
---@param opts? { tie_correction?: boolean }
---@return { u_stat: number, z_score: number, p_value: number }
function alc.math.mann_whitney_u(xs, ys, opts) end

---@param observed number[]
---@param expected number[]
---@return { chi2_stat: number, df: number, p_value: number }
function alc.math.chi_squared_test(observed, expected) end

---@param xs number[]
---@param ys number[]
---@return { d_stat: number, p_value: number }
function alc.math.ks_test(xs, ys) end

---@class alc.CardSummary
---@field card_id string
---@field pkg string
---@field created_at? string
---@field model? string
---@field scenario? string
---@field pass_rate? number

---@class alc.card
alc.card = {}

---@param card table with pkg.name
---@return { card_id: string, path: string }
function alc.card.create(card) end

---@param id string
---@return table?
function alc.card.get(id) end

---@param opts? { pkg?: string }
---@return alc.CardSummary[]
function alc.card.list(opts) end

---@param id string
---@param fields table
---@return table
function alc.card.append(id, fields) end

---@param opts? { pkg?: string, where?: table, order_by?: string|string[], limit?: integer, offset?: integer }
---@return alc.CardSummary[]
function alc.card.find(opts) end

---@param name string
---@param id string
---@param opts? { pkg?: string, note?: string }
---@return table
function alc.card.alias_set(name, id, opts) end

---@param opts? { pkg?: string }
---@return table[]
function alc.card.alias_list(opts) end

---@param name string
---@return table?
function alc.card.get_by_alias(name) end

---@param id string
---@param rows table[]
---@return { path: string, count: integer }
function alc.card.write_samples(id, rows) end

---@param id string
---@param opts? { where?: table, offset?: integer, limit?: integer }
---@return table[]
function alc.card.read_samples(id, opts) end

---@class alc.LineageOptions
---@field card_id string
---@field direction? "up"|"down"|"both"
---@field depth? integer
---@field include_stats? boolean
---@field relation_filter? string[]

---@param opts alc.LineageOptions
---@return { root: string, nodes: table[], edges: table[], truncated: boolean }?
function alc.card.lineage(opts) end

---@param opts { sink: string, dry_run?: boolean }
---@return table
function alc.card.sink_backfill(opts) end

---The module that every package returns.
---@class alc.Package
---@field meta { name: string, version?: string, description?: string, category?: string }
---@field run fun(ctx: table): alc.Json

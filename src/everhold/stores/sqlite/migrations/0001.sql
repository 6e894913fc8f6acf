-- Format 1. Times are seconds since 1970; payloads are JSON text; `seal` is a CRC-32 of the row's content.

-- What never changes about a session. `ref` is the number every other table knows it by.
CREATE TABLE session (
  ref        INTEGER PRIMARY KEY AUTOINCREMENT,
  id         TEXT NOT NULL UNIQUE,
  key        TEXT UNIQUE,
  program    TEXT NOT NULL,
  created_at REAL NOT NULL,
  parent     TEXT,
  origin     INTEGER REFERENCES session (ref),
  origin_n   INTEGER NOT NULL DEFAULT -1,
  deleted    INTEGER NOT NULL DEFAULT 0,
  birth      TEXT NOT NULL,
  seal       INTEGER NOT NULL
);
CREATE INDEX session_created ON session (created_at, id);
CREATE INDEX session_parent ON session (parent) WHERE parent IS NOT NULL;
CREATE INDEX session_origin ON session (origin) WHERE origin IS NOT NULL;

-- What changes with every commit. Its name holds the format: a migration renames it, so that an older process
-- which still has the file open finds no table to write to, and says so.
CREATE TABLE head_1 (
  ref        INTEGER PRIMARY KEY REFERENCES session (ref),
  revision   INTEGER NOT NULL,
  state      TEXT NOT NULL,
  n          INTEGER NOT NULL,
  open_from  INTEGER NOT NULL,
  due_at     REAL,
  updated_at REAL NOT NULL,
  metrics    TEXT NOT NULL,
  mail       INTEGER NOT NULL DEFAULT 0,
  attempts   INTEGER NOT NULL DEFAULT 0,
  seal       INTEGER NOT NULL
);
CREATE INDEX head_due ON head_1 (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX head_mail ON head_1 (ref) WHERE mail > 0;
CREATE INDEX head_live ON head_1 (state) WHERE state IN ('running', 'paused');

-- One append-only row per delivery.
CREATE TABLE journal (
  session INTEGER NOT NULL,
  n       INTEGER NOT NULL,
  at      REAL NOT NULL,
  answers TEXT NOT NULL,
  asked   TEXT NOT NULL,
  notes   TEXT,
  seal    INTEGER NOT NULL,
  UNIQUE (session, n)
);

-- Open queries that people answer, that are addressed to somebody, or whose outcome is unknown.
CREATE TABLE notice (
  session   INTEGER NOT NULL,
  q         INTEGER NOT NULL,
  kind      TEXT NOT NULL,
  addressee TEXT,
  asked_at  REAL NOT NULL,
  query     TEXT NOT NULL,
  UNIQUE (session, q)
);

-- Marks of work under way, kept from before it starts until its outcome is recorded.
CREATE TABLE effect (
  session INTEGER NOT NULL,
  q       INTEGER NOT NULL,
  worker  TEXT NOT NULL,
  since   REAL NOT NULL,
  UNIQUE (session, q)
);

-- What was accepted for a session and not yet handed to its program.
CREATE TABLE letter (
  id      INTEGER PRIMARY KEY AUTOINCREMENT,
  session INTEGER NOT NULL,
  kind    TEXT NOT NULL,
  body    TEXT NOT NULL,
  at      REAL NOT NULL,
  seal    INTEGER NOT NULL
);
CREATE INDEX letter_session ON letter (session);

-- Durable values shared between sessions; a deleted one keeps its version.
CREATE TABLE value (
  namespace TEXT NOT NULL,
  key       TEXT NOT NULL,
  value     TEXT,
  version   INTEGER NOT NULL,
  seal      INTEGER NOT NULL,
  PRIMARY KEY (namespace, key)
);

-- Processes that work for sessions.
CREATE TABLE worker (
  id      TEXT PRIMARY KEY,
  host    TEXT NOT NULL,
  pid     INTEGER NOT NULL,
  seen_at REAL NOT NULL
);

-- The four views below are a public contract; see docs/reference/views.md.
CREATE VIEW sessions_v AS
SELECT s.id AS session_id, s.key, s.program, json_extract(s.birth, '$.version') AS version,
       coalesce(json_extract(s.birth, '$.title'), '') AS title, coalesce(json_extract(s.birth, '$.labels'), '{}') AS labels,
       h.state, h.n AS steps, s.created_at, h.updated_at, h.due_at, s.parent AS parent_id,
       o.id AS origin_id, CASE WHEN s.origin IS NULL THEN NULL ELSE s.origin_n END AS origin_step,
       coalesce(json_extract(s.birth, '$.args'), '{}') AS args,
       CASE WHEN h.state = 'completed' THEN json_extract(j.notes, '$.outcome.value') END AS result,
       CASE WHEN h.state = 'failed' THEN json_extract(j.notes, '$.outcome.error') END AS error
FROM session s JOIN head_1 h ON h.ref = s.ref LEFT JOIN session o ON o.ref = s.origin
LEFT JOIN journal j ON j.session = s.ref AND j.n = h.n AND h.state IN ('completed', 'failed')
WHERE s.deleted = 0;

-- Every delivery of every session, those a fork shares with its origin included.
CREATE VIEW deliveries_v AS
WITH RECURSIVE shared (session, source, upto, origin, origin_n) AS (
  SELECT ref, ref, 9223372036854775807, origin, origin_n FROM session WHERE deleted = 0
  UNION ALL
  SELECT shared.session, s.ref, min(shared.upto, shared.origin_n), s.origin, s.origin_n
  FROM shared JOIN session s ON s.ref = shared.origin
)
SELECT s.id AS session_id, j.n AS step, j.at, j.answers, j.asked, j.notes
FROM shared JOIN session s ON s.ref = shared.session
JOIN journal j ON j.session = shared.source AND j.n <= shared.upto;

CREATE VIEW answers_v AS
SELECT d.session_id, 'q-' || json_extract(a.value, '$.q') AS query_id, d.step, d.at AS answered_at,
       json_extract(a.value, '$.value') AS value, json_extract(a.value, '$.error.message') AS error,
       json_extract(a.value, '$.usage.prompt_tokens') AS prompt_tokens,
       json_extract(a.value, '$.usage.completion_tokens') AS completion_tokens,
       json_extract(a.value, '$.by') AS answered_by, coalesce(json_extract(a.value, '$.expired'), 0) AS expired
FROM deliveries_v d, json_each(d.answers) a;

CREATE VIEW queries_v AS
SELECT d.session_id, 'q-' || json_extract(q.value, '$.q') AS query_id, d.step, d.at AS asked_at,
       coalesce(json_extract(q.value, '$.kind'), 'llm') AS kind, json_extract(q.value, '$.key') AS key,
       coalesce(json_extract(q.value, '$.prompt'), '') AS prompt, json_extract(q.value, '$.system') AS system,
       coalesce(json_extract(q.value, '$.name'), '') AS name, json_extract(q.value, '$.to') AS addressee,
       json_extract(q.value, '$.expires_at') AS expires_at, q.value AS query,
       CASE
         WHEN EXISTS (SELECT 1 FROM deliveries_v x, json_each(x.answers) a WHERE x.session_id = d.session_id
                      AND x.step > d.step AND json_extract(a.value, '$.q') = json_extract(q.value, '$.q')
                      AND json_extract(a.value, '$.expired') = 1) THEN 'expired'
         WHEN EXISTS (SELECT 1 FROM deliveries_v x, json_each(x.answers) a WHERE x.session_id = d.session_id
                      AND x.step > d.step AND json_extract(a.value, '$.q') = json_extract(q.value, '$.q')) THEN 'answered'
         WHEN EXISTS (SELECT 1 FROM deliveries_v x, json_each(x.notes, '$.withdrawn') w WHERE x.session_id = d.session_id
                      AND x.step > d.step AND x.notes IS NOT NULL AND w.value = json_extract(q.value, '$.q')) THEN 'withdrawn'
         WHEN (SELECT state FROM sessions_v v WHERE v.session_id = d.session_id) = 'cancelled' THEN 'cancelled'
         WHEN (SELECT state FROM sessions_v v WHERE v.session_id = d.session_id) IN ('completed', 'failed') THEN 'withdrawn'
         ELSE 'open'
       END AS state
FROM deliveries_v d, json_each(d.asked) q;

CREATE VIEW usage_v AS
SELECT s.id AS session_id, s.program, h.state, s.created_at,
       json_extract(h.metrics, '$[0]') AS llm_calls, json_extract(h.metrics, '$[2]') AS rounds,
       json_extract(h.metrics, '$[5]') + json_extract(h.metrics, '$[9]') AS prompt_tokens,
       json_extract(h.metrics, '$[6]') AS prompt_source,
       json_extract(h.metrics, '$[7]') AS response_tokens, json_extract(h.metrics, '$[8]') AS response_source
FROM session s JOIN head_1 h ON h.ref = s.ref WHERE s.deleted = 0;

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
  seal      INTEGER NOT NULL,
  UNIQUE (session, q)
);

-- Marks of work under way, kept from before it starts until its outcome is recorded.
CREATE TABLE effect (
  session INTEGER NOT NULL,
  q       INTEGER NOT NULL,
  worker  TEXT NOT NULL,
  since   REAL NOT NULL,
  seal    INTEGER NOT NULL,
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

-- Every delivery of every session, those a fork shares with its origin included. Behind the views below; not public.
CREATE VIEW deliveries_v AS
SELECT s.id AS session_id, s.ref, j.n AS step, j.at, j.answers, j.asked, j.notes
FROM session s JOIN journal j ON j.session = s.ref
WHERE s.deleted = 0
UNION ALL
SELECT f.id, f.ref, j.n, j.at, j.answers, j.asked, j.notes
FROM (
  WITH RECURSIVE shared (id, ref, source, upto) AS (
    SELECT id, ref, origin, origin_n FROM session WHERE origin IS NOT NULL AND deleted = 0
    UNION ALL
    SELECT shared.id, shared.ref, s.origin, min(shared.upto, s.origin_n)
    FROM shared JOIN session s ON s.ref = shared.source
    WHERE s.origin IS NOT NULL
  )
  SELECT id, ref, source, upto FROM shared
) f
JOIN journal j ON j.session = f.source AND j.n <= f.upto;

-- The four views below are a public contract; see docs/reference/views.md.
CREATE VIEW sessions_v AS
SELECT s.id AS session_id, s.key, s.program, coalesce(json_extract(s.birth, '$.version'), 1) AS version,
       coalesce(json_extract(s.birth, '$.title'), '') AS title,
       coalesce(json_extract(s.birth, '$.labels'), '{}') AS labels,
       coalesce(json_extract(s.birth, '$.metadata'), '{}') AS metadata,
       h.state, h.n AS steps, s.created_at, h.updated_at, h.due_at, s.parent AS parent_id,
       o.id AS origin_id, CASE WHEN s.origin IS NULL THEN NULL ELSE s.origin_n END AS origin_step,
       coalesce(json_extract(s.birth, '$.args'), '{}') AS args,
       CASE WHEN h.state = 'completed' THEN json_extract(j.notes, '$.outcome.value') END AS result,
       CASE WHEN h.state = 'completed' THEN json_type(j.notes, '$.outcome.value') END AS result_type,
       CASE h.state WHEN 'failed' THEN json_extract(j.notes, '$.outcome.error')
                    WHEN 'cancelled' THEN coalesce(json_extract(j.notes, '$.outcome.reason'), '') END AS error
FROM session s JOIN head_1 h ON h.ref = s.ref LEFT JOIN session o ON o.ref = s.origin
LEFT JOIN journal j ON j.session = s.ref AND j.n = h.n AND h.state IN ('completed', 'failed', 'cancelled')
WHERE s.deleted = 0;

CREATE VIEW answers_v AS
SELECT d.session_id, 'q-' || json_extract(a.value, '$.q') AS query_id, d.step, d.at AS answered_at,
       json_extract(a.value, '$.value') AS value, json_type(a.value, '$.value') AS value_type,
       json_extract(a.value, '$.error.message') AS error, json_extract(a.value, '$.error.code') AS error_code,
       json_extract(a.value, '$.usage.prompt_tokens') AS prompt_tokens,
       json_extract(a.value, '$.usage.completion_tokens') AS completion_tokens,
       json_extract(a.value, '$.by') AS answered_by, coalesce(json_extract(a.value, '$.expired'), 0) AS expired
FROM deliveries_v d JOIN json_each(d.answers) a;

-- A query's end is looked for from its own step on, in the session's journal and in what it shares with its origins;
-- it is mostly found in the next row. A retry lists again what is still open: only what it asked first is shown for it.
CREATE VIEW queries_v AS
SELECT d.session_id, 'q-' || json_extract(a.value, '$.q') AS query_id, d.step, d.at AS asked_at,
       coalesce(json_extract(a.value, '$.kind'), 'llm') AS kind, json_extract(a.value, '$.key') AS key,
       coalesce(json_extract(a.value, '$.prompt'), '') AS prompt, json_extract(a.value, '$.system') AS system,
       coalesce(json_extract(a.value, '$.name'), '') AS name, json_extract(a.value, '$.to') AS addressee,
       json_extract(a.value, '$.expires_at') AS expires_at, a.value AS query,
       coalesce(
         (
           WITH RECURSIVE chain (source, after, upto, origin) AS (
             SELECT s.ref, s.origin_n, 9223372036854775807, s.origin FROM session s WHERE s.ref = d.ref
             UNION ALL
             SELECT s.ref, s.origin_n, min(chain.upto, chain.after), s.origin
             FROM chain JOIN session s ON s.ref = chain.origin WHERE chain.after > d.step
           )
           SELECT CASE WHEN json_extract(g.value, '$.expired') THEN 'expired' ELSE 'answered' END
           FROM chain CROSS JOIN journal j CROSS JOIN json_each(j.answers) g
           WHERE j.session = chain.source AND j.n > max(chain.after, d.step) AND j.n <= chain.upto
             AND json_extract(g.value, '$.q') = json_extract(a.value, '$.q')
           LIMIT 1
         ),
         (
           WITH RECURSIVE chain (source, after, upto, origin) AS (
             SELECT s.ref, s.origin_n, 9223372036854775807, s.origin FROM session s WHERE s.ref = d.ref
             UNION ALL
             SELECT s.ref, s.origin_n, min(chain.upto, chain.after), s.origin
             FROM chain JOIN session s ON s.ref = chain.origin WHERE chain.after > d.step
           )
           SELECT 'withdrawn'
           FROM chain CROSS JOIN journal j CROSS JOIN json_each(j.notes, '$.withdrawn') w
           WHERE j.session = chain.source AND j.n > max(chain.after, d.step) AND j.n <= chain.upto
             AND j.notes IS NOT NULL AND w.value = json_extract(a.value, '$.q')
           LIMIT 1
         ),
         (
           SELECT CASE WHEN h.state = 'cancelled' THEN 'cancelled' WHEN h.state IN ('completed', 'failed') THEN 'withdrawn' END
           FROM head_1 h WHERE h.ref = d.ref
         ),
         'open'
       ) AS state
FROM deliveries_v d JOIN json_each(d.asked) a
WHERE d.notes IS NULL OR NOT coalesce(json_extract(d.notes, '$.retry'), 0) OR NOT EXISTS (
  SELECT 1 FROM deliveries_v x JOIN json_each(x.asked) b
  WHERE x.session_id = d.session_id AND x.step < d.step AND json_extract(b.value, '$.q') = json_extract(a.value, '$.q')
);

CREATE VIEW usage_v AS
SELECT s.id AS session_id, s.program, h.state, s.created_at, h.updated_at,
       json_extract(h.metrics, '$[0]') AS llm_calls, json_extract(h.metrics, '$[2]') AS rounds,
       json_extract(h.metrics, '$[5]') + json_extract(h.metrics, '$[9]') AS prompt_tokens,
       CASE WHEN json_extract(h.metrics, '$[9]') THEN 'estimated' ELSE json_extract(h.metrics, '$[6]') END AS prompt_source,
       json_extract(h.metrics, '$[7]') AS response_tokens, json_extract(h.metrics, '$[8]') AS response_source,
       json_extract(h.metrics, '$[5]') + json_extract(h.metrics, '$[9]') + json_extract(h.metrics, '$[7]') AS total_tokens
FROM session s JOIN head_1 h ON h.ref = s.ref WHERE s.deleted = 0;

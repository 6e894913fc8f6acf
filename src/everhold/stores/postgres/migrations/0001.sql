-- Format 1. Times are seconds since 1970; payloads are JSON text; `seal` is a CRC-32 of the row's content.
-- Text outside JSON holds no NUL: U+0000 is kept as U+0001 U+0001, and U+0001 as U+0001 U+0002, which keeps the order.
-- The schema is `everhold` unless the address names another.

-- Whose schema this is, and its format.
CREATE TABLE everhold.about (
  product text NOT NULL,
  format  int8 NOT NULL
);
INSERT INTO everhold.about VALUES ('everhold', 1);

-- What never changes about a session. `ref` is the number every other table knows it by.
CREATE SEQUENCE everhold.session_ref;
CREATE TABLE everhold.session (
  ref        int8 PRIMARY KEY,
  id         text COLLATE "C" NOT NULL UNIQUE,
  key        text COLLATE "C" UNIQUE,
  program    text COLLATE "C" NOT NULL,
  created_at float8 NOT NULL,
  parent     text COLLATE "C",
  origin     int8 REFERENCES everhold.session (ref),
  origin_n   int8 NOT NULL DEFAULT -1,
  deleted    int8 NOT NULL DEFAULT 0,
  labels     jsonb NOT NULL,
  birth      text NOT NULL,
  seal       int8 NOT NULL
);
CREATE INDEX session_created ON everhold.session (created_at, id);
CREATE INDEX session_parent ON everhold.session (parent) WHERE parent IS NOT NULL;
CREATE INDEX session_origin ON everhold.session (origin) WHERE origin IS NOT NULL;
CREATE INDEX session_labels ON everhold.session USING gin (labels jsonb_path_ops) WHERE labels <> '{}';

-- What changes with every commit. Its name holds the format: a migration renames it, so that an older process
-- finds no table to write to, and says so. Half of each page is free: a step rewrites a row in its place.
CREATE TABLE everhold.head_1 (
  ref        int8 PRIMARY KEY,
  revision   int8 NOT NULL,
  state      text COLLATE "C" NOT NULL,
  n          int8 NOT NULL,
  open_from  int8 NOT NULL,
  due_at     float8,
  updated_at float8 NOT NULL,
  metrics    text NOT NULL,
  mail       int8 NOT NULL DEFAULT 0,
  attempts   int8 NOT NULL DEFAULT 0,
  seal       int8 NOT NULL
) WITH (fillfactor = 50);
CREATE INDEX head_due ON everhold.head_1 (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX head_mail ON everhold.head_1 (ref) WHERE mail > 0;
CREATE INDEX head_live ON everhold.head_1 (ref) WHERE state IN ('running', 'paused');

-- One append-only row per delivery.
CREATE TABLE everhold.journal (
  session int8 NOT NULL,
  n       int8 NOT NULL,
  at      float8 NOT NULL,
  answers text NOT NULL,
  asked   text NOT NULL,
  notes   text,
  seal    int8 NOT NULL,
  PRIMARY KEY (session, n)
);

-- Open queries that people answer, that are addressed to somebody, or whose outcome is unknown.
CREATE TABLE everhold.notice (
  session   int8 NOT NULL,
  q         int8 NOT NULL,
  kind      text COLLATE "C" NOT NULL,
  addressee text COLLATE "C",
  asked_at  float8 NOT NULL,
  query     text NOT NULL,
  seal      int8 NOT NULL,
  PRIMARY KEY (session, q)
);

-- Marks of work under way, kept from before it starts until its outcome is recorded.
CREATE TABLE everhold.effect (
  session int8 NOT NULL,
  q       int8 NOT NULL,
  worker  text COLLATE "C" NOT NULL,
  since   float8 NOT NULL,
  seal    int8 NOT NULL,
  PRIMARY KEY (session, q)
);

-- What was accepted for a session and not yet handed to its program.
CREATE TABLE everhold.letter (
  id      int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  session int8 NOT NULL,
  kind    text COLLATE "C" NOT NULL,
  body    text NOT NULL,
  at      float8 NOT NULL,
  seal    int8 NOT NULL
);
CREATE INDEX letter_session ON everhold.letter (session);

-- Durable values shared between sessions; a deleted one keeps its version.
CREATE TABLE everhold.value (
  namespace text COLLATE "C" NOT NULL,
  key       text COLLATE "C" NOT NULL,
  value     text,
  version   int8 NOT NULL,
  seal      int8 NOT NULL,
  PRIMARY KEY (namespace, key)
);

-- Processes that work for sessions.
CREATE TABLE everhold.worker (
  id      text COLLATE "C" PRIMARY KEY,
  host    text COLLATE "C" NOT NULL,
  pid     int8 NOT NULL,
  seen_at float8 NOT NULL
);

-- Changes that landed a short while ago, so that one whose acknowledgement was lost is known, and not applied again.
CREATE TABLE everhold.receipt (
  id int8 PRIMARY KEY,
  at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX receipt_at ON everhold.receipt (at);

-- How often each process has told the others that it wrote.
CREATE TABLE everhold.pulse (
  id    text PRIMARY KEY,
  count int8 NOT NULL,
  at    timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);

-- Land one change whole, or refuse it with nothing changed: NULL, or why, of which birth, and who is in the way.
-- `fence` 0 is for a new session, the first of the births; `others` are the heads of sessions that get a letter, which
-- the caller has locked. A change that landed before, and whose sender did not hear so, is not applied again.
CREATE FUNCTION everhold.land_1(receipt_id int8, session_ref int8, fence int8, head json, deliveries json, rest json)
RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
  moved everhold.head_1 := json_populate_record(NULL::everhold.head_1, head);
  refused text[];
BEGIN
  IF fence > 0 THEN
    IF rest IS NULL OR (rest -> 'births' IS NULL AND rest -> 'writes' IS NULL) THEN
      NULL;  -- the update below is the compare-and-set
    ELSE
      PERFORM 1 FROM everhold.head_1 h WHERE h.ref = session_ref AND h.revision = fence FOR NO KEY UPDATE;
      IF NOT FOUND THEN
        RETURN everhold.refusal_1(receipt_id, ARRAY['overtaken', '0']);
      END IF;
    END IF;
  END IF;
  IF rest IS NOT NULL THEN
    refused := everhold.hindrance_1(rest);
    IF refused IS NOT NULL THEN
      RETURN everhold.refusal_1(receipt_id, refused);
    END IF;
  END IF;
  IF fence > 0 THEN
    UPDATE everhold.head_1 h SET revision = moved.revision, state = moved.state, n = moved.n,
      open_from = moved.open_from, due_at = moved.due_at, updated_at = moved.updated_at, metrics = moved.metrics,
      mail = moved.mail, attempts = moved.attempts, seal = moved.seal
    WHERE h.ref = session_ref AND h.revision = fence;
    IF NOT FOUND THEN
      RETURN everhold.refusal_1(receipt_id, ARRAY['overtaken', '0']);
    END IF;
  END IF;
  IF deliveries IS NOT NULL THEN
    INSERT INTO everhold.journal SELECT * FROM json_populate_recordset(NULL::everhold.journal, deliveries);
  END IF;
  IF rest IS NOT NULL THEN
    PERFORM everhold.land_rest_1(session_ref, rest);
  END IF;
  INSERT INTO everhold.receipt (id) VALUES (receipt_id);
  RETURN NULL;
END $$;

-- A refusal, unless the same change landed before.
CREATE FUNCTION everhold.refusal_1(receipt_id int8, why text[]) RETURNS text[] LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1 FROM everhold.receipt WHERE id = receipt_id;
  RETURN CASE WHEN FOUND THEN NULL ELSE why END;
END $$;

-- What stands in the way of a change: an id or a key that is taken, an origin that is gone, a value that moved on.
CREATE FUNCTION everhold.hindrance_1(rest json) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
  birth record;
  write record;
  found_id text;
BEGIN
  FOR birth IN SELECT * FROM json_to_recordset(rest -> 'births') AS b (i int8, id text, key text, origin text) LOOP
    PERFORM 1 FROM everhold.session s WHERE s.id = birth.id;
    IF FOUND THEN
      RETURN ARRAY['overtaken', birth.i::text];
    END IF;
    IF birth.key IS NOT NULL THEN
      SELECT s.id INTO found_id FROM everhold.session s WHERE s.key = birth.key;
      IF FOUND THEN
        RETURN ARRAY['taken', birth.i::text, found_id];
      END IF;
    END IF;
    IF birth.origin IS NOT NULL THEN
      -- A fork and the deletion of its origin wait for each other.
      PERFORM 1 FROM everhold.session s WHERE s.id = birth.origin AND s.deleted = 0 FOR SHARE;
      IF NOT FOUND THEN
        RETURN ARRAY['unknown', birth.i::text];
      END IF;
    END IF;
  END LOOP;
  FOR write IN SELECT * FROM json_to_recordset(rest -> 'writes') AS w (namespace text, key text, fence int8) LOOP
    PERFORM 1 FROM everhold.value v WHERE v.namespace = write.namespace AND v.key = write.key
      AND v.version <> write.fence FOR NO KEY UPDATE;
    IF FOUND THEN
      RETURN ARRAY['overtaken', '0'];
    END IF;
    PERFORM 1 FROM everhold.value v WHERE v.namespace = write.namespace AND v.key = write.key
      AND v.version = write.fence FOR NO KEY UPDATE;
    IF NOT FOUND AND write.fence > 0 THEN
      RETURN ARRAY['overtaken', '0'];
    END IF;
  END LOOP;
  RETURN NULL;
END $$;

-- The rarer parts of a change, after everything that could refuse it.
CREATE FUNCTION everhold.land_rest_1(session_ref int8, rest json) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF rest -> 'births' IS NOT NULL THEN
    INSERT INTO everhold.session (ref, id, key, program, created_at, parent, origin, origin_n, labels, birth, seal)
    SELECT b.ref, b.id, b.key, b.program, b.created_at, b.parent,
      (SELECT s.ref FROM everhold.session s WHERE s.id = b.origin), b.origin_n, b.labels, b.birth, b.seal
    FROM json_to_recordset(rest -> 'births') AS b (ref int8, id text, key text, program text, created_at float8,
      parent text, origin text, origin_n int8, labels jsonb, birth text, seal int8);
    INSERT INTO everhold.head_1 SELECT * FROM json_populate_recordset(NULL::everhold.head_1, rest -> 'heads');
  END IF;
  IF rest -> 'ended' IS NOT NULL THEN
    DELETE FROM everhold.notice WHERE session = session_ref;
    DELETE FROM everhold.effect WHERE session = session_ref;
  ELSIF rest -> 'closed' IS NOT NULL THEN
    DELETE FROM everhold.notice n USING json_array_elements_text(rest -> 'closed') c
      WHERE n.session = session_ref AND n.q = c.value::int8;
    DELETE FROM everhold.effect e USING json_array_elements_text(rest -> 'closed') c
      WHERE e.session = session_ref AND e.q = c.value::int8;
  END IF;
  IF rest -> 'notices' IS NOT NULL THEN
    INSERT INTO everhold.notice SELECT * FROM json_populate_recordset(NULL::everhold.notice, rest -> 'notices')
    ON CONFLICT (session, q) DO UPDATE SET kind = excluded.kind, addressee = excluded.addressee,
      asked_at = excluded.asked_at, query = excluded.query, seal = excluded.seal;
  END IF;
  IF rest -> 'effects' IS NOT NULL THEN
    INSERT INTO everhold.effect SELECT * FROM json_populate_recordset(NULL::everhold.effect, rest -> 'effects')
    ON CONFLICT (session, q) DO UPDATE SET worker = excluded.worker, since = excluded.since, seal = excluded.seal;
  END IF;
  IF rest -> 'read' IS NOT NULL THEN
    DELETE FROM everhold.letter l USING json_array_elements_text(rest -> 'read') r
      WHERE l.session = session_ref AND l.id = r.value::int8;
  END IF;
  IF rest -> 'others' IS NOT NULL THEN
    UPDATE everhold.head_1 h SET revision = o.revision, state = o.state, mail = o.mail, seal = o.seal
    FROM json_populate_recordset(NULL::everhold.head_1, rest -> 'others') o WHERE h.ref = o.ref;
  END IF;
  IF rest -> 'letters' IS NOT NULL THEN
    INSERT INTO everhold.letter (session, kind, body, at, seal)
    SELECT l.session, l.kind, l.body, l.at, l.seal FROM json_to_recordset(rest -> 'letters')
      AS l (i int8, session int8, kind text, body text, at float8, seal int8) ORDER BY l.i;
  END IF;
  IF rest -> 'writes' IS NOT NULL THEN
    INSERT INTO everhold.value (namespace, key, value, version, seal)
    SELECT w.namespace, w.key, w.value, w.version, w.seal FROM json_to_recordset(rest -> 'writes')
      AS w (namespace text, key text, value text, version int8, seal int8, fence int8) WHERE w.fence = 0;
    UPDATE everhold.value v SET value = w.value, version = w.version, seal = w.seal
    FROM json_to_recordset(rest -> 'writes')
      AS w (namespace text, key text, value text, version int8, seal int8, fence int8)
    WHERE w.fence > 0 AND v.namespace = w.namespace AND v.key = w.key;
  END IF;
END $$;

-- JSON text as SQL can read it: U+0000, which SQL text cannot hold, is shown as U+FFFD. What is stored stays as it is.
CREATE FUNCTION everhold.readable(given text) RETURNS json LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE WHEN strpos(given, '\u0000') = 0 THEN given
    ELSE regexp_replace(given, '(?<!\\)((?:\\\\)*)\\u0000', '\1\\ufffd', 'g') END::json
$$;

-- A JSON value as the views show it: text, numbers, 0 and 1, objects and lists as JSON text; and which it was.
CREATE FUNCTION everhold.shown(given json) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE json_typeof(given) WHEN 'boolean' THEN CASE given::text WHEN 'true' THEN '1' ELSE '0' END
    ELSE given #>> '{}' END
$$;
CREATE FUNCTION everhold.type_of(given json) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE json_typeof(given) WHEN 'string' THEN 'text' WHEN 'boolean' THEN given::text
    WHEN 'number' THEN CASE WHEN given::text ~ '[.eE]' THEN 'real' ELSE 'integer' END ELSE json_typeof(given) END
$$;

-- Every delivery of every session, those a fork shares with its origin included. Behind the views below; not public.
CREATE VIEW everhold.deliveries_v AS
SELECT s.id AS session_id, s.ref, j.n AS step, j.at, j.answers, j.asked, j.notes
FROM everhold.session s JOIN everhold.journal j ON j.session = s.ref
WHERE s.deleted = 0
UNION ALL
SELECT f.id, f.ref, j.n, j.at, j.answers, j.asked, j.notes
FROM (
  WITH RECURSIVE shared (id, ref, source, upto) AS (
    SELECT id, ref, origin, origin_n FROM everhold.session WHERE origin IS NOT NULL AND deleted = 0
    UNION ALL
    SELECT shared.id, shared.ref, s.origin, least(shared.upto, s.origin_n)
    FROM shared JOIN everhold.session s ON s.ref = shared.source
    WHERE s.origin IS NOT NULL
  )
  SELECT id, ref, source, upto FROM shared
) f
JOIN everhold.journal j ON j.session = f.source AND j.n <= f.upto;

-- The four views below are a public contract; see docs/reference/views.md.
CREATE VIEW everhold.sessions_v AS
SELECT s.id AS session_id, s.key, s.program, coalesce((b.born ->> 'version')::int8, 1) AS version,
       coalesce(b.born ->> 'title', '') AS title,
       coalesce(b.born ->> 'labels', '{}') AS labels,
       coalesce(b.born ->> 'metadata', '{}') AS metadata,
       h.state, h.n AS steps, s.created_at, h.updated_at, h.due_at, s.parent AS parent_id,
       o.id AS origin_id, CASE WHEN s.origin IS NULL THEN NULL ELSE s.origin_n END AS origin_step,
       coalesce(b.born ->> 'args', '{}') AS args,
       CASE WHEN h.state = 'completed' THEN everhold.shown(e.ending -> 'value') END AS result,
       CASE WHEN h.state = 'completed' THEN everhold.type_of(e.ending -> 'value') END AS result_type,
       CASE h.state WHEN 'failed' THEN e.ending ->> 'error'
                    WHEN 'cancelled' THEN coalesce(e.ending ->> 'reason', '') END AS error
FROM everhold.session s JOIN everhold.head_1 h ON h.ref = s.ref LEFT JOIN everhold.session o ON o.ref = s.origin
CROSS JOIN LATERAL (SELECT everhold.readable(s.birth) AS born) b
LEFT JOIN LATERAL (
  SELECT everhold.readable(j.notes) -> 'outcome' AS ending FROM everhold.journal j
  WHERE j.session = s.ref AND j.n = h.n AND h.state IN ('completed', 'failed', 'cancelled')
) e ON true
WHERE s.deleted = 0;

CREATE VIEW everhold.answers_v AS
SELECT d.session_id, 'q-' || (a.given ->> 'q') AS query_id, d.step, d.at AS answered_at,
       everhold.shown(a.given -> 'value') AS value, everhold.type_of(a.given -> 'value') AS value_type,
       a.given #>> '{error,message}' AS error, a.given #>> '{error,code}' AS error_code,
       (a.given #>> '{usage,prompt_tokens}')::int8 AS prompt_tokens,
       (a.given #>> '{usage,completion_tokens}')::int8 AS completion_tokens,
       a.given ->> 'by' AS answered_by,
       CASE WHEN (a.given ->> 'expired')::boolean THEN 1 ELSE 0 END AS expired
FROM everhold.deliveries_v d CROSS JOIN LATERAL json_array_elements(everhold.readable(d.answers)) a (given);

-- A query's end is looked for from its own step on, in the session's journal and in what it shares with its origins;
-- it is mostly found in the next row. (A function, so that the server does not take the view for a costly one.)
CREATE FUNCTION everhold.query_state(session_ref int8, asked_in int8, query_q text)
RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
  found_state text;
BEGIN
  WITH RECURSIVE chain (source, after, upto, origin) AS (
    SELECT s.ref, s.origin_n, 9223372036854775807, s.origin FROM everhold.session s WHERE s.ref = session_ref
    UNION ALL
    SELECT s.ref, s.origin_n, least(chain.upto, chain.after), s.origin
    FROM chain JOIN everhold.session s ON s.ref = chain.origin WHERE chain.after > asked_in
  )
  SELECT CASE WHEN (g.given ->> 'expired')::boolean THEN 'expired' ELSE 'answered' END INTO found_state
  FROM chain CROSS JOIN LATERAL (
    SELECT j.answers FROM everhold.journal j WHERE j.session = chain.source
      AND j.n > greatest(chain.after, asked_in) AND j.n <= chain.upto ORDER BY j.n
  ) j CROSS JOIN LATERAL json_array_elements(everhold.readable(j.answers)) g (given)
  WHERE (g.given ->> 'q') = query_q LIMIT 1;
  IF FOUND THEN
    RETURN found_state;
  END IF;
  WITH RECURSIVE chain (source, after, upto, origin) AS (
    SELECT s.ref, s.origin_n, 9223372036854775807, s.origin FROM everhold.session s WHERE s.ref = session_ref
    UNION ALL
    SELECT s.ref, s.origin_n, least(chain.upto, chain.after), s.origin
    FROM chain JOIN everhold.session s ON s.ref = chain.origin WHERE chain.after > asked_in
  )
  SELECT 'withdrawn' INTO found_state
  FROM chain CROSS JOIN LATERAL (
    SELECT j.notes FROM everhold.journal j WHERE j.session = chain.source
      AND j.n > greatest(chain.after, asked_in) AND j.n <= chain.upto AND j.notes IS NOT NULL ORDER BY j.n
  ) j CROSS JOIN LATERAL json_array_elements_text(everhold.readable(j.notes) -> 'withdrawn') w (q)
  WHERE w.q = query_q LIMIT 1;
  IF FOUND THEN
    RETURN found_state;
  END IF;
  RETURN (
    SELECT CASE h.state WHEN 'cancelled' THEN 'cancelled' WHEN 'completed' THEN 'withdrawn' WHEN 'failed' THEN 'withdrawn'
      ELSE 'open' END FROM everhold.head_1 h WHERE h.ref = session_ref
  );
END $$;

-- Whether a query was asked before: a retry lists again what is still open.
CREATE FUNCTION everhold.asked_before(session text, asked_in int8, query_q text)
RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN EXISTS (
    SELECT 1 FROM everhold.deliveries_v x CROSS JOIN LATERAL json_array_elements(everhold.readable(x.asked)) b (query)
    WHERE x.session_id = session AND x.step < asked_in AND (b.query ->> 'q') = query_q
  );
END $$;

CREATE VIEW everhold.queries_v AS
SELECT d.session_id, 'q-' || (a.query ->> 'q') AS query_id, d.step, d.at AS asked_at,
       coalesce(a.query ->> 'kind', 'llm') AS kind, a.query ->> 'key' AS key,
       coalesce(a.query ->> 'prompt', '') AS prompt, a.query ->> 'system' AS system,
       coalesce(a.query ->> 'name', '') AS name, a.query ->> 'to' AS addressee,
       (a.query ->> 'expires_at')::float8 AS expires_at, a.query::text AS query,
       everhold.query_state(d.ref, d.step, a.query ->> 'q') AS state
FROM everhold.deliveries_v d CROSS JOIN LATERAL json_array_elements(everhold.readable(d.asked)) a (query)
WHERE CASE WHEN d.notes IS NULL OR NOT coalesce((everhold.readable(d.notes) ->> 'retry')::boolean, false) THEN true
      ELSE NOT everhold.asked_before(d.session_id, d.step, a.query ->> 'q') END;

CREATE VIEW everhold.usage_v AS
SELECT s.id AS session_id, s.program, h.state, s.created_at, h.updated_at,
       (m.counted ->> 0)::int8 AS llm_calls, (m.counted ->> 2)::int8 AS rounds,
       (m.counted ->> 5)::int8 + (m.counted ->> 9)::int8 AS prompt_tokens,
       CASE WHEN (m.counted ->> 9)::int8 <> 0 THEN 'estimated' ELSE m.counted ->> 6 END AS prompt_source,
       (m.counted ->> 7)::int8 AS response_tokens, m.counted ->> 8 AS response_source,
       (m.counted ->> 5)::int8 + (m.counted ->> 9)::int8 + (m.counted ->> 7)::int8 AS total_tokens
FROM everhold.session s JOIN everhold.head_1 h ON h.ref = s.ref
CROSS JOIN LATERAL (SELECT h.metrics::json AS counted) m
WHERE s.deleted = 0;

-- Format 5. Lists and the inbox are read in order from an index, so that a page costs what it shows.
-- An older process may go on: what it does not write is filled in here.
-- No index here is on a column that every step changes, so a step still rewrites the head in its place.

-- The session's own, so that an index on another column of the head is in the order of lists.
ALTER TABLE everhold.head_1 ADD COLUMN created_at float8 NOT NULL DEFAULT 0;
-- Whether a question may be open that has no row in the inbox. A hint, so it is not sealed: a 1 costs one look.
ALTER TABLE everhold.head_1 ADD COLUMN asking int8 NOT NULL DEFAULT 0;
UPDATE everhold.head_1 h SET created_at = s.created_at,
  asking = CASE WHEN h.state IN ('running', 'paused') AND h.open_from <= h.n THEN 1 ELSE 0 END
FROM everhold.session s WHERE s.ref = h.ref;
-- The end of a session, for retention. It stays empty until then, so that steps do not change it.
ALTER TABLE everhold.head_1 ADD COLUMN ended_at float8
  GENERATED ALWAYS AS (CASE WHEN state IN ('completed', 'failed', 'cancelled') THEN updated_at END) STORED;
DROP INDEX everhold.head_live;
CREATE INDEX head_state ON everhold.head_1 (state, created_at);
CREATE INDEX head_ended ON everhold.head_1 (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX head_asking ON everhold.head_1 (created_at) WHERE asking = 1;

-- The id sorts as the time does, so it is not needed behind it.
DROP INDEX everhold.session_created;
CREATE INDEX session_created ON everhold.session (created_at);
CREATE INDEX session_program ON everhold.session (program, created_at);
DROP INDEX everhold.session_parent;
CREATE INDEX session_parent ON everhold.session (parent, created_at) WHERE parent IS NOT NULL;

-- The labels of sessions; they never change.
CREATE TABLE everhold.label (
  name       text COLLATE "C" NOT NULL,
  value      text COLLATE "C" NOT NULL,
  created_at float8 NOT NULL,
  session    int8 NOT NULL,
  PRIMARY KEY (name, value, created_at, session)
);
DROP INDEX everhold.session_labels;
INSERT INTO everhold.label SELECT l.key, l.value, s.created_at, s.ref
FROM everhold.session s CROSS JOIN LATERAL jsonb_each_text(s.labels) l WHERE s.deleted = 0;

-- The inbox shows the oldest session first.
ALTER TABLE everhold.notice ADD COLUMN created_at float8 NOT NULL DEFAULT 0;
UPDATE everhold.notice n SET created_at = s.created_at FROM everhold.session s WHERE s.ref = n.session;
CREATE INDEX notice_kind ON everhold.notice (kind, created_at);
CREATE INDEX notice_addressee ON everhold.notice (addressee, created_at) WHERE addressee IS NOT NULL;

-- As before, and the hint with it.
CREATE OR REPLACE FUNCTION everhold.land_1(receipt_id int8, session_ref int8, fence int8, head json, deliveries json, rest json)
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
      mail = moved.mail, attempts = moved.attempts, seal = moved.seal, parked = moved.parked, asking = coalesce(moved.asking, 1)
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

-- As before; heads and notices get the session's time, and labels their table.
CREATE OR REPLACE FUNCTION everhold.land_rest_1(session_ref int8, rest json) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF rest -> 'births' IS NOT NULL THEN
    INSERT INTO everhold.session (ref, id, key, program, created_at, parent, origin, origin_n, labels, birth, seal)
    SELECT b.ref, b.id, b.key, b.program, b.created_at, b.parent,
      (SELECT s.ref FROM everhold.session s WHERE s.id = b.origin), b.origin_n, b.labels, b.birth, b.seal
    FROM json_to_recordset(rest -> 'births') AS b (ref int8, id text, key text, program text, created_at float8,
      parent text, origin text, origin_n int8, labels jsonb, birth text, seal int8);
    INSERT INTO everhold.head_1 (ref, revision, state, n, open_from, due_at, updated_at, metrics, mail, attempts, seal,
      parked, asking, created_at)
    SELECT h.ref, h.revision, h.state, h.n, h.open_from, h.due_at, h.updated_at, h.metrics, h.mail, h.attempts, h.seal,
      h.parked, coalesce(h.asking, 1), b.created_at
    FROM json_populate_recordset(NULL::everhold.head_1, rest -> 'heads') h
    JOIN json_to_recordset(rest -> 'births') AS b (ref int8, created_at float8) ON b.ref = h.ref;
    INSERT INTO everhold.label (name, value, created_at, session)
    SELECT l.key, l.value, b.created_at, b.ref
    FROM json_to_recordset(rest -> 'births') AS b (ref int8, created_at float8, labels jsonb)
    CROSS JOIN LATERAL jsonb_each_text(b.labels) l;
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
    INSERT INTO everhold.notice (session, q, kind, addressee, asked_at, query, seal, created_at)
    SELECT n.session, n.q, n.kind, n.addressee, n.asked_at, n.query, n.seal, h.created_at
    FROM json_populate_recordset(NULL::everhold.notice, rest -> 'notices') n
    JOIN everhold.head_1 h ON h.ref = n.session
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

-- Locks the head and the lease of a session and reads its intake, as it is after the locks were granted. `which` items
-- are read: the queued ones ('waiting'), also those that are named ('chosen'), only those ('only'), or 'all'.
CREATE FUNCTION everhold.open_intake_1(wanted text, named text[], which text, strength text, patience text)
RETURNS TABLE (session_id text, session_ref int8, session_state text, clock float8,
  lease_seq int8, lease_owner text, lease_incarnation text, lease_token text, lease_generation int8, lease_claimed_at float8, lease_seal int8, lease_expires_at float8, lease_released int8,
  item_seq int8, item_id text, item_key text, item_body text, item_at float8, item_available_at float8, item_state text, item_deferred int8, item_hold text, item_fence int8, item_ended text, item_seal int8
) LANGUAGE plpgsql AS $$
DECLARE
  found int8;
BEGIN
  PERFORM set_config('synchronous_commit', strength, true), set_config('lock_timeout', patience, true);
  SELECT h.ref INTO found FROM everhold.session s JOIN everhold.head_1 h ON h.ref = s.ref
    WHERE s.id = wanted AND s.deleted = 0 FOR NO KEY UPDATE OF h;
  PERFORM 1 FROM everhold.lease l WHERE l.session = found FOR NO KEY UPDATE;
  RETURN QUERY SELECT wanted, h.ref, h.state, extract(epoch FROM clock_timestamp())::float8,
    l.seq, l.owner, l.incarnation, l.token, l.generation, l.claimed_at, l.seal, l.expires_at, l.released,
    i.seq, i.id, i.key, i.body, i.at, i.available_at, i.state, i.deferred, i.hold, i.fence, i.ended, i.seal
  FROM everhold.head_1 h LEFT JOIN everhold.lease l ON l.session = h.ref LEFT JOIN LATERAL (
    SELECT * FROM everhold.item i WHERE i.session = found AND i.state = 'waiting' AND which IN ('waiting', 'chosen')
    UNION ALL
    SELECT * FROM everhold.item i WHERE i.session = found AND i.state <> 'waiting' AND which = 'chosen' AND i.id = ANY (named)
    UNION ALL
    SELECT * FROM everhold.item i WHERE i.session = found AND i.state <> 'waiting' AND which = 'chosen' AND i.key = ANY (named)
    UNION ALL
    SELECT * FROM everhold.item i WHERE i.session = found AND which = 'only' AND i.id = ANY (named)
    UNION ALL
    SELECT * FROM everhold.item i WHERE i.session = found AND which = 'only' AND i.key = ANY (named)
      AND NOT i.id = ANY (named)
    UNION ALL
    SELECT * FROM everhold.item i WHERE i.session = found AND which = 'all'
  ) i ON true WHERE h.ref = found;
END $$;

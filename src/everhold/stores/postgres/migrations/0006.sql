-- Format 6. A mark knows the last failed attempt at its query, as JSON.

-- A mark without one keeps the seal that it had before. An older process that still has the schema open finds that a
-- mark with one does not match its seal, and leaves the session to others.
ALTER TABLE everhold.effect ADD COLUMN failed text;

-- As before; marks get the new column.
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
    ON CONFLICT (session, q) DO UPDATE SET worker = excluded.worker, since = excluded.since, seal = excluded.seal,
      failed = excluded.failed;
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

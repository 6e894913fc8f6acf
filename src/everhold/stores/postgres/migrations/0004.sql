-- Format 4. Which sessions have a question to a model that a worker may take. A hint for reconciliation, so not sealed:
-- an older process may go on, and writes nothing there (NULL).
ALTER TABLE everhold.head_1 ADD COLUMN parked int8;
CREATE INDEX head_parked ON everhold.head_1 (ref) WHERE parked = 1;

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
      mail = moved.mail, attempts = moved.attempts, seal = moved.seal, parked = moved.parked
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

-- `session.origin` is the session whose rows a fork reads. The one it was forked from is in its birth.
CREATE OR REPLACE VIEW everhold.sessions_v AS
SELECT s.id AS session_id, s.key, s.program, coalesce((b.born ->> 'version')::int8, 1) AS version,
       coalesce(b.born ->> 'title', '') AS title,
       coalesce(b.born ->> 'labels', '{}') AS labels,
       coalesce(b.born ->> 'metadata', '{}') AS metadata,
       h.state, h.n AS steps, s.created_at, h.updated_at, h.due_at, s.parent AS parent_id,
       (b.born ->> 'origin') COLLATE "C" AS origin_id, CASE WHEN s.origin IS NULL THEN NULL ELSE s.origin_n END AS origin_step,
       coalesce(b.born ->> 'args', '{}') AS args,
       CASE WHEN h.state = 'completed' THEN everhold.shown(e.ending -> 'value') END AS result,
       CASE WHEN h.state = 'completed' THEN everhold.type_of(e.ending -> 'value') END AS result_type,
       CASE h.state WHEN 'failed' THEN e.ending ->> 'error'
                    WHEN 'cancelled' THEN coalesce(e.ending ->> 'reason', '') END AS error
FROM everhold.session s JOIN everhold.head_1 h ON h.ref = s.ref
CROSS JOIN LATERAL (SELECT everhold.readable(s.birth) AS born) b
LEFT JOIN LATERAL (
  SELECT everhold.readable(j.notes) -> 'outcome' AS ending FROM everhold.journal j
  WHERE j.session = s.ref AND j.n = h.n AND h.state IN ('completed', 'failed', 'cancelled')
) e ON true
WHERE s.deleted = 0;

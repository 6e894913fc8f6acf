-- Format 4. A file knows which file it is, a fork which session it was forked from, and a head whether a worker may
-- take a question of its session.

-- ---- The identity of the file.
-- One row: the inode number of the file that the database was in when it was last opened, so that a copy is known
-- when it is opened first; and whether this is a copy that had no write-ahead log beside it then. The device is left
-- out: its number may change when a machine is started again. A database without the row is made to be copied.
CREATE TABLE file (
  one   INTEGER PRIMARY KEY CHECK (one = 1),
  inode TEXT NOT NULL,
  alone INTEGER NOT NULL
);

-- ---- The origin of a fork.
-- `session.origin` is the session whose rows a fork reads. The one it was forked from is in its birth.
DROP VIEW sessions_v;
CREATE VIEW sessions_v AS
SELECT s.id AS session_id, s.key, s.program, coalesce(json_extract(s.birth, '$.version'), 1) AS version,
       coalesce(json_extract(s.birth, '$.title'), '') AS title,
       coalesce(json_extract(s.birth, '$.labels'), '{}') AS labels,
       coalesce(json_extract(s.birth, '$.metadata'), '{}') AS metadata,
       h.state, h.n AS steps, s.created_at, h.updated_at, h.due_at, s.parent AS parent_id,
       json_extract(s.birth, '$.origin') AS origin_id,
       CASE WHEN s.origin IS NULL THEN NULL ELSE s.origin_n END AS origin_step,
       coalesce(json_extract(s.birth, '$.args'), '{}') AS args,
       CASE WHEN h.state = 'completed' THEN json_extract(j.notes, '$.outcome.value') END AS result,
       CASE WHEN h.state = 'completed' THEN json_type(j.notes, '$.outcome.value') END AS result_type,
       CASE h.state WHEN 'failed' THEN json_extract(j.notes, '$.outcome.error')
                    WHEN 'cancelled' THEN coalesce(json_extract(j.notes, '$.outcome.reason'), '') END AS error
FROM session s JOIN head_1 h ON h.ref = s.ref
LEFT JOIN journal j ON j.session = s.ref AND j.n = h.n AND h.state IN ('completed', 'failed', 'cancelled')
WHERE s.deleted = 0;

-- ---- Questions for workers.
-- Which sessions have a question to a model that a worker may take. A hint for reconciliation, so it is not sealed: an
-- older process that still has the file open may go on, and leaves it as it was.
ALTER TABLE head_1 ADD COLUMN parked INTEGER NOT NULL DEFAULT 0;
CREATE INDEX head_parked ON head_1 (ref) WHERE parked = 1;

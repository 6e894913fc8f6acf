-- Format 5. Lists and the inbox are read in order from an index, so that a page costs what it shows. The head is
-- renamed: an older process would leave out what the indexes need, so it finds no table to write to, and says so.

ALTER TABLE head_1 RENAME TO head_2;
-- The session's own, so that an index on another column of the head is in the order of lists.
ALTER TABLE head_2 ADD COLUMN created_at REAL NOT NULL DEFAULT 0;
-- Whether a question may be open that has no row in the inbox. A hint, so it is not sealed: a 1 costs one look.
ALTER TABLE head_2 ADD COLUMN asking INTEGER NOT NULL DEFAULT 0;
UPDATE head_2 SET created_at = (SELECT s.created_at FROM session s WHERE s.ref = head_2.ref);
UPDATE head_2 SET asking = 1 WHERE state IN ('running', 'paused') AND open_from <= n AND (
  open_from <= (SELECT s.origin_n FROM session s WHERE s.ref = head_2.ref) OR EXISTS (
    SELECT 1 FROM journal j, json_each(j.asked) a WHERE j.session = head_2.ref AND j.n >= head_2.open_from
      AND coalesce(json_extract(a.value, '$.kind'), 'llm') IN ('llm', 'tool')));
DROP INDEX head_live;
CREATE INDEX head_state ON head_2 (state, created_at);
CREATE INDEX head_ended ON head_2 (updated_at) WHERE state IN ('completed', 'failed', 'cancelled');
CREATE INDEX head_asking ON head_2 (created_at) WHERE asking = 1;

-- The id sorts as the time does, so it is not needed behind it.
DROP INDEX session_created;
CREATE INDEX session_created ON session (created_at);
CREATE INDEX session_program ON session (program, created_at);
DROP INDEX session_parent;
CREATE INDEX session_parent ON session (parent, created_at) WHERE parent IS NOT NULL;

-- The labels of sessions; they never change.
CREATE TABLE label (
  name       TEXT NOT NULL,
  value      TEXT NOT NULL,
  created_at REAL NOT NULL,
  session    INTEGER NOT NULL,
  PRIMARY KEY (name, value, created_at, session)
) WITHOUT ROWID;
INSERT INTO label SELECT l.key, l.value, s.created_at, s.ref FROM session s, json_each(s.birth, '$.labels') l
WHERE s.deleted = 0;

-- The inbox shows the oldest session first.
ALTER TABLE notice ADD COLUMN created_at REAL NOT NULL DEFAULT 0;
UPDATE notice SET created_at = (SELECT s.created_at FROM session s WHERE s.ref = notice.session);
CREATE INDEX notice_kind ON notice (kind, created_at);
CREATE INDEX notice_addressee ON notice (addressee, created_at) WHERE addressee IS NOT NULL;

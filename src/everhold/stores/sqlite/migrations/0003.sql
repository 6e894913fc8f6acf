-- Format 3. The intake: leases, inputs and queued work; and what the house keeps in mind beside sessions.
-- An older process that still has the file open may go on: what it does not know of waits for one that does.

-- Who works on a session, and the number of the last item that came for it. How long changes too often to be sealed.
CREATE TABLE lease (
  session     INTEGER PRIMARY KEY,
  seq         INTEGER NOT NULL,
  owner       TEXT NOT NULL,
  incarnation TEXT NOT NULL,
  token       TEXT NOT NULL,
  generation  INTEGER NOT NULL,
  claimed_at  REAL NOT NULL,
  seal        INTEGER NOT NULL,
  expires_at  REAL NOT NULL,
  released    INTEGER NOT NULL
);
CREATE INDEX lease_owner ON lease (incarnation) WHERE released = 0;

-- What waits, and what has ended, until a vacuum.
CREATE TABLE item (
  session      INTEGER NOT NULL,
  seq          INTEGER NOT NULL,
  id           TEXT NOT NULL,
  key          TEXT,
  body         TEXT NOT NULL,
  at           REAL NOT NULL,
  available_at REAL NOT NULL,
  state        TEXT NOT NULL,
  deferred     INTEGER NOT NULL,
  hold         TEXT,
  fence        INTEGER NOT NULL,
  ended        TEXT,
  seal         INTEGER NOT NULL,
  PRIMARY KEY (session, seq),
  UNIQUE (session, id),
  UNIQUE (session, key)
) WITHOUT ROWID;
CREATE INDEX item_waiting ON item (available_at, session) WHERE state = 'waiting';
CREATE INDEX item_open ON item (session) WHERE state = 'waiting';

CREATE TABLE duty (
  kind    TEXT NOT NULL,
  id      TEXT NOT NULL,
  body    TEXT NOT NULL,
  due_at  REAL,
  version INTEGER NOT NULL,
  seal    INTEGER NOT NULL,
  PRIMARY KEY (kind, id)
) WITHOUT ROWID;
CREATE INDEX duty_due ON duty (kind, due_at) WHERE due_at IS NOT NULL;

-- How long each process counts as alive after it was last heard of.
ALTER TABLE worker ADD COLUMN ttl REAL NOT NULL DEFAULT 10;

-- Format 3. The intake: leases, inputs and queued work; and what the house keeps in mind beside sessions.
-- An older process may go on: what it does not know of waits for one that does.

-- Who works on a session, and the number of the last item that came for it. How long changes too often to be sealed.
CREATE TABLE everhold.lease (
  session     int8 PRIMARY KEY,
  seq         int8 NOT NULL,
  owner       text NOT NULL,
  incarnation text COLLATE "C" NOT NULL,
  token       text NOT NULL,
  generation  int8 NOT NULL,
  claimed_at  float8 NOT NULL,
  seal        int8 NOT NULL,
  expires_at  float8 NOT NULL,
  released    int8 NOT NULL
);
CREATE INDEX lease_owner ON everhold.lease (incarnation) WHERE released = 0;

-- What waits, and what has ended, until a vacuum.
CREATE TABLE everhold.item (
  session      int8 NOT NULL,
  seq          int8 NOT NULL,
  id           text COLLATE "C" NOT NULL,
  key          text COLLATE "C",
  body         text NOT NULL,
  at           float8 NOT NULL,
  available_at float8 NOT NULL,
  state        text COLLATE "C" NOT NULL,
  deferred     int8 NOT NULL,
  hold         text,
  fence        int8 NOT NULL,
  ended        text,
  seal         int8 NOT NULL,
  PRIMARY KEY (session, seq),
  UNIQUE (session, id),
  UNIQUE (session, key)
);
CREATE INDEX item_waiting ON everhold.item (available_at, session) WHERE state = 'waiting';
CREATE INDEX item_open ON everhold.item (session) WHERE state = 'waiting';

CREATE TABLE everhold.duty (
  kind    text COLLATE "C" NOT NULL,
  id      text COLLATE "C" NOT NULL,
  body    text NOT NULL,
  due_at  float8,
  version int8 NOT NULL,
  seal    int8 NOT NULL,
  PRIMARY KEY (kind, id)
);
CREATE INDEX duty_due ON everhold.duty (kind, due_at) WHERE due_at IS NOT NULL;

-- How long each process counts as alive after it was last heard of.
ALTER TABLE everhold.worker ADD COLUMN ttl float8 NOT NULL DEFAULT 10;

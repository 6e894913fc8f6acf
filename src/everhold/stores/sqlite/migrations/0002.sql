-- Format 2. Attachments: bytes kept beside sessions. The name of a blob is the SHA-256 of its data, which is its seal.
-- An older process that still has the file open may go on: it knows nothing of these tables, and harms nothing in them.

CREATE TABLE blob (
  id   TEXT PRIMARY KEY,
  data BLOB NOT NULL
);

-- Which session keeps what, and at which step it was when it did. A blob that no row names is gone.
CREATE TABLE attachment (
  session    INTEGER NOT NULL,
  blob       TEXT NOT NULL REFERENCES blob (id),
  n          INTEGER NOT NULL,
  media_type TEXT NOT NULL,
  size       INTEGER NOT NULL,
  at         REAL NOT NULL,
  UNIQUE (session, blob)
);
CREATE INDEX attachment_blob ON attachment (blob);

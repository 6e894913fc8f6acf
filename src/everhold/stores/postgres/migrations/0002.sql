-- Format 2. Attachments: bytes kept beside sessions. The name of a blob is the SHA-256 of its data, which is its seal.
-- An older process may go on: it knows nothing of these tables, and harms nothing in them.

CREATE TABLE everhold.blob (
  id   text COLLATE "C" PRIMARY KEY,
  data bytea NOT NULL
);

-- Which session keeps what, and at which step it was when it did. A blob that no row names is gone.
CREATE TABLE everhold.attachment (
  session    int8 NOT NULL,
  blob       text COLLATE "C" NOT NULL REFERENCES everhold.blob (id),
  n          int8 NOT NULL,
  media_type text NOT NULL,
  size       int8 NOT NULL,
  at         float8 NOT NULL,
  UNIQUE (session, blob)
);
CREATE INDEX attachment_blob ON everhold.attachment (blob);

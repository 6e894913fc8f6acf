-- Format 6. A mark knows the last failed attempt at its query, as JSON.

-- A mark without one keeps the seal that it had before. An older process that still has the file open finds that a
-- mark with one does not match its seal, and leaves the session to others.
ALTER TABLE effect ADD COLUMN failed TEXT;

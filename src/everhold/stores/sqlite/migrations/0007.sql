-- Format 7. Every step changes `updated_at`, so it evaluates the condition of this index twice. SQLite builds a table
-- for each IN (...); comparisons cost next to nothing. An older process that still has the file open says so when it
-- lists the longest ended sessions, because it names the condition as it was.
DROP INDEX head_ended;
CREATE INDEX head_ended ON head_2 (updated_at) WHERE state <> 'running' AND state <> 'paused';

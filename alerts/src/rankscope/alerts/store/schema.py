"""The tables of the store and the version of their format."""

from __future__ import annotations

from typing import Final

SCHEMA: Final = "rankscope.alerts-store"
VERSION: Final = 2
"""``user_version`` of the file."""

TABLES: Final = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

CREATE TABLE deliveries (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  key TEXT UNIQUE,
  received_unix_ns INTEGER NOT NULL,
  body BLOB,
  done_unix_ns INTEGER
);
CREATE INDEX deliveries_waiting ON deliveries (number) WHERE done_unix_ns IS NULL;

CREATE TABLE episodes (
  fingerprint TEXT PRIMARY KEY,
  starts_unix_ns INTEGER NOT NULL,
  status TEXT NOT NULL,
  changed_unix_ns INTEGER NOT NULL,
  forwarded_unix_ns INTEGER NOT NULL,
  forwarded INTEGER NOT NULL,
  repeats INTEGER NOT NULL,
  updated_unix_ns INTEGER NOT NULL
);

CREATE TABLE actions (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  kind TEXT NOT NULL,
  fingerprint TEXT NOT NULL,
  starts_unix_ns INTEGER NOT NULL,
  run_id TEXT NOT NULL,
  state TEXT NOT NULL,
  created_unix_ns INTEGER NOT NULL,
  steps INTEGER NOT NULL,
  alert BLOB NOT NULL,
  request_id TEXT,
  result BLOB,
  UNIQUE (kind, fingerprint, starts_unix_ns)
);

CREATE TABLE messages (
  sequence INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  target TEXT NOT NULL,
  group_key TEXT NOT NULL,
  body BLOB NOT NULL,
  alert_count INTEGER NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('waiting', 'delivered', 'dead', 'overtaken')),
  created_unix_ns INTEGER NOT NULL,
  queued_ns INTEGER NOT NULL,
  next_attempt_ns INTEGER NOT NULL DEFAULT 0,
  attempts INTEGER NOT NULL DEFAULT 0,
  uncertain INTEGER NOT NULL DEFAULT 0,
  finished_unix_ns INTEGER,
  last_error TEXT NOT NULL DEFAULT ''
);
CREATE INDEX messages_waiting ON messages (target, group_key, sequence) WHERE state = 'waiting';
CREATE INDEX messages_by_state ON messages (state, sequence);

CREATE TABLE alert_states (
  target TEXT NOT NULL,
  fingerprint TEXT NOT NULL,
  starts_at TEXT NOT NULL,
  status TEXT NOT NULL,
  revision TEXT NOT NULL,
  message TEXT NOT NULL,
  number INTEGER NOT NULL,
  PRIMARY KEY (target, fingerprint, starts_at, status, revision)
) WITHOUT ROWID;
CREATE INDEX alert_states_by_message ON alert_states (message);
CREATE INDEX alert_states_by_age ON alert_states (number);

CREATE TABLE disabled (target TEXT PRIMARY KEY, reason TEXT NOT NULL) WITHOUT ROWID;

CREATE TABLE alerts (number INTEGER PRIMARY KEY, entry BLOB NOT NULL);
CREATE TABLE active_runs (run TEXT PRIMARY KEY) WITHOUT ROWID;
"""

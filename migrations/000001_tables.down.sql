-- Takes back the tables. Run it in one transaction, with the search_path of the up migration.

DROP TABLE events, done_keys, receipts, fences, spent_grants, waiters, sessions, locks, installation;
DROP SEQUENCE ticket_seq, fencing_token_seq;

CREATE TABLE IF NOT EXISTS parts (name varchar PRIMARY KEY, stored_at timestamp with time zone DEFAULT now() NOT NULL);
CREATE TABLE IF NOT EXISTS orders (topic varchar, "partition" int, "offset" bigint, content varchar);

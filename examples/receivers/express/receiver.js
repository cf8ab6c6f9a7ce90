// Stores each message once, with Express and SQLite: names of parts and rows in one transaction.
//
//     npm install
//     PORT=8080 DB=orders.db npm start
"use strict";

const Database = require("better-sqlite3");
const express = require("express");

const KEEP_MS = 24 * 3600 * 1000;
const db = new Database(process.env.DB || "orders.db");
db.pragma("journal_mode = WAL");
db.exec(`CREATE TABLE IF NOT EXISTS parts (name TEXT PRIMARY KEY, stored_at INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS orders (topic TEXT, "partition" INTEGER, "offset" INTEGER, value TEXT);`);
const forget = db.prepare("DELETE FROM parts WHERE stored_at < ?");
const remember = db.prepare("INSERT OR IGNORE INTO parts VALUES (?, ?)");
const insert = db.prepare("INSERT INTO orders VALUES (?, ?, ?, ?)");

// An error undoes the transaction, Express answers 500, and the batch is sent again.
const store = db.transaction((group, parts, rows) => {
  forget.run(Date.now() - KEEP_MS);
  for (const part of parts) {
    const end = part.lastIndexOf("=");
    const own = rows.splice(0, Number(part.slice(end + 1)));
    if (remember.run(`${group} ${part.slice(0, end)}`, Date.now()).changes) {
      for (const row of own) insert.run(row.topic, row.partition, row.offset, row.value);
    }
  }
});

function isJson(text) {
  try {
    JSON.parse(text);
    return typeof text === "string";
  } catch {
    return false;
  }
}

const app = express();
app.post("/ingest", express.text({ type: "application/x-ndjson", limit: "64mb" }), (request, response) => {
  const rows = request.body.split("\n").slice(0, -1).map((line) => JSON.parse(line));
  const bad = rows.findIndex((row) => !isJson(row.value));
  if (bad >= 0) return response.status(400).send(`row ${bad} has no JSON as its value`);
  store.immediate(request.get("Sidecar-Group"), request.get("Sidecar-Parts").split(","), rows);
  response.status(204).end();
});
app.get("/count", (_, response) => {
  const distinct = 'SELECT count(*) FROM (SELECT DISTINCT topic, "partition", "offset" FROM orders)';
  const one = (sql) => db.prepare(sql).pluck().get();
  response.json({ rows: one("SELECT count(*) FROM orders"), distinct: one(distinct) });
});
app.listen(Number(process.env.PORT || 8080), "127.0.0.1");

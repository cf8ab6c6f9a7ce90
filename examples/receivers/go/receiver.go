// Stores each message once, with Go and PostgreSQL: names of parts and rows in one transaction.
//
//	DB='postgres://me@localhost/orders?sslmode=disable' PORT=8080 go run .
package main

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"strings"

	"github.com/lib/pq"
)

const schema = `
CREATE TABLE IF NOT EXISTS parts (name text PRIMARY KEY, stored_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE IF NOT EXISTS orders (topic text, "partition" int, "offset" bigint, value text);`

type row struct {
	Topic     string
	Partition int
	Offset    int64
	Value     *string
}

type receiver struct{ db *sql.DB }

// ingest stores the rows of each part whose name is new: 204 once they are durable, 400 if a row can never be stored.
func (r receiver) ingest(w http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, request.Body, 64<<20))
	if err != nil {
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	var rows []row
	for number, line := range bytes.Split(bytes.TrimSuffix(body, []byte("\n")), []byte("\n")) {
		var one row
		if json.Unmarshal(line, &one) != nil || one.Value == nil || !json.Valid([]byte(*one.Value)) {
			http.Error(w, fmt.Sprintf("row %d has no JSON as its value", number), http.StatusBadRequest)
			return
		}
		rows = append(rows, one)
	}
	parts := strings.Split(request.Header.Get("Sidecar-Parts"), ",")
	if err := r.store(request.Header.Get("Sidecar-Group"), parts, rows); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError) // the batch is sent again
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (r receiver) store(group string, parts []string, rows []row) error {
	tx, err := r.db.Begin()
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := tx.Exec("DELETE FROM parts WHERE stored_at < now() - interval '24 hours'"); err != nil {
		return err
	}
	for _, part := range parts {
		end := strings.LastIndex(part, "=")
		count, err := strconv.Atoi(part[end+1:])
		if err != nil || count > len(rows) {
			return fmt.Errorf("the part %q has another number of rows", part)
		}
		own := rows[:count]
		rows = rows[count:]
		// Waits for a request with the same part that is still in its transaction.
		done, err := tx.Exec("INSERT INTO parts (name) VALUES ($1) ON CONFLICT DO NOTHING", group+" "+part[:end])
		if err != nil {
			return err
		}
		if isNew, _ := done.RowsAffected(); isNew == 0 {
			continue
		}
		if err := insert(tx, own); err != nil {
			return err
		}
	}
	return tx.Commit()
}

func insert(tx *sql.Tx, rows []row) error {
	statement, err := tx.Prepare(pq.CopyIn("orders", "topic", "partition", "offset", "value"))
	if err != nil {
		return err
	}
	for _, one := range rows {
		if _, err := statement.Exec(one.Topic, one.Partition, one.Offset, *one.Value); err != nil {
			return err
		}
	}
	_, err = statement.Exec()
	return err
}

// count tells how many rows are stored, and how many different ones.
func (r receiver) count(w http.ResponseWriter, _ *http.Request) {
	var books struct {
		Rows     int `json:"rows"`
		Distinct int `json:"distinct"`
	}
	query := `SELECT count(*), count(DISTINCT (topic, "partition", "offset")) FROM orders`
	if err := r.db.QueryRow(query).Scan(&books.Rows, &books.Distinct); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	json.NewEncoder(w).Encode(books)
}

func main() {
	db, err := sql.Open("postgres", os.Getenv("DB"))
	if err == nil {
		_, err = db.Exec(schema)
	}
	if err != nil {
		log.Fatal(err)
	}
	r := receiver{db}
	http.HandleFunc("POST /ingest", r.ingest)
	http.HandleFunc("GET /count", r.count)
	port := os.Getenv("PORT")
	if port == "" {
		port = "8080"
	}
	log.Fatal(http.ListenAndServe("127.0.0.1:"+port, nil))
}

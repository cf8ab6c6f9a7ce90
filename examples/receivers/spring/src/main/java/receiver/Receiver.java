package receiver;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.http.ResponseEntity;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.transaction.support.TransactionTemplate;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RequestBody;
import org.springframework.web.bind.annotation.RequestHeader;
import org.springframework.web.bind.annotation.RestController;

/** Stores each message once, with Spring Boot and H2: names of parts and rows in one transaction. */
@SpringBootApplication
@RestController
public class Receiver {
    private static final ObjectMapper JSON =
            new ObjectMapper().enable(DeserializationFeature.FAIL_ON_TRAILING_TOKENS);
    private final JdbcTemplate db;
    private final TransactionTemplate transaction;

    Receiver(JdbcTemplate db, TransactionTemplate transaction) {
        this.db = db;
        this.transaction = transaction;
    }

    /** Stores the rows of each part whose name is new: 204 once they are durable, 400 if a row can never be stored. */
    @PostMapping("/ingest")
    ResponseEntity<String> ingest(
            @RequestHeader("Sidecar-Group") String group,
            @RequestHeader("Sidecar-Parts") String parts,
            @RequestBody byte[] body) throws JsonProcessingException {
        List<Object[]> rows = new ArrayList<>();
        for (String line : new String(body, StandardCharsets.UTF_8).split("\n")) {
            JsonNode row = JSON.readTree(line);
            String value = row.path("value").textValue();
            if (value == null || !isJson(value)) {
                return ResponseEntity.badRequest().body("row " + rows.size() + " has no JSON as its value");
            }
            rows.add(new Object[] {
                row.get("topic").asText(), row.get("partition").asInt(), row.get("offset").asLong(), value
            });
        }
        transaction.executeWithoutResult(status -> store(group, parts.split(","), rows));
        return ResponseEntity.noContent().build();
    }

    private void store(String group, String[] parts, List<Object[]> rows) {
        db.update("DELETE FROM parts WHERE stored_at < now() - interval '1' day");
        int from = 0;
        for (String part : parts) {
            int end = part.lastIndexOf('=');
            int to = from + Integer.parseInt(part.substring(end + 1));
            String name = group + " " + part.substring(0, end);
            // Waits for a request with the same part that is still in its transaction.
            if (db.update("INSERT INTO parts (name) VALUES (?) ON CONFLICT DO NOTHING", name) > 0) {
                db.batchUpdate("INSERT INTO orders VALUES (?, ?, ?, ?)", rows.subList(from, to));
            }
            from = to;
        }
    }

    private static boolean isJson(String text) {
        try {
            return !JSON.readTree(text).isMissingNode();
        } catch (JsonProcessingException error) {
            return false;
        }
    }

    /** How many rows are stored, and how many different ones. */
    @GetMapping("/count")
    Map<String, Object> count() {
        return Map.of(
                "rows", db.queryForObject("SELECT count(*) FROM orders", Long.class),
                "distinct",
                db.queryForObject(
                        "SELECT count(*) FROM (SELECT DISTINCT topic, \"partition\", \"offset\" FROM orders)",
                        Long.class));
    }

    public static void main(String[] args) {
        SpringApplication.run(Receiver.class, args);
    }
}

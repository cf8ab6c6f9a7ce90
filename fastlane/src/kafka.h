/* The public calls of librdkafka that are used, as its manual declares them. Nothing is linked: client.c finds them in
 * the library that confluent-kafka has loaded. */
#pragma once
#include <stdint.h>
#include <stddef.h>
#include <sys/types.h>

typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
typedef struct rd_kafka_queue_s rd_kafka_queue_t;
typedef struct rd_kafka_topic_s rd_kafka_topic_t;
typedef struct rd_kafka_headers_s rd_kafka_headers_t;
typedef int rd_kafka_resp_err_t;
typedef int rd_kafka_timestamp_type_t;

enum { KAFKA_OK = 0, KAFKA_STATE = -172, KAFKA_NO_TIMESTAMP = 0 };

typedef struct {
  rd_kafka_resp_err_t err;
  rd_kafka_topic_t *rkt;
  int32_t partition;
  void *payload;
  size_t len;
  void *key;
  size_t key_len;
  int64_t offset;
  void *private_;
} rd_kafka_message_t;

_Static_assert(sizeof(void *) != 8 || sizeof(rd_kafka_message_t) == 72, "librdkafka's public message");

typedef rd_kafka_resp_err_t on_new_t(rd_kafka_t *, const rd_kafka_conf_t *, void *, char *, size_t);
typedef rd_kafka_resp_err_t on_destroy_t(rd_kafka_t *, void *);

/* X(result, name, arguments) */
#define KAFKA_CALLS(X)                                                                                              \
  X(int, rd_kafka_version, (void))                                                                                  \
  X(rd_kafka_resp_err_t, rd_kafka_conf_interceptor_add_on_new, (rd_kafka_conf_t *, const char *, on_new_t *, void *)) \
  X(rd_kafka_resp_err_t, rd_kafka_interceptor_add_on_destroy, (rd_kafka_t *, const char *, on_destroy_t *, void *))   \
  X(rd_kafka_queue_t *, rd_kafka_queue_new, (rd_kafka_t *))                                                         \
  X(void, rd_kafka_queue_destroy, (rd_kafka_queue_t *))                                                             \
  X(rd_kafka_queue_t *, rd_kafka_queue_get_partition, (rd_kafka_t *, const char *, int32_t))                        \
  X(void, rd_kafka_queue_forward, (rd_kafka_queue_t *, rd_kafka_queue_t *))                                         \
  X(ssize_t, rd_kafka_consume_batch_queue, (rd_kafka_queue_t *, int, rd_kafka_message_t **, size_t))                \
  X(void, rd_kafka_message_destroy, (rd_kafka_message_t *))                                                         \
  X(rd_kafka_resp_err_t, rd_kafka_message_headers, (const rd_kafka_message_t *, rd_kafka_headers_t **))             \
  X(size_t, rd_kafka_header_cnt, (const rd_kafka_headers_t *))                                                      \
  X(rd_kafka_resp_err_t, rd_kafka_header_get_all,                                                                   \
    (const rd_kafka_headers_t *, size_t, const char **, const void **, size_t *))                                   \
  X(int64_t, rd_kafka_message_timestamp, (const rd_kafka_message_t *, rd_kafka_timestamp_type_t *))                 \
  X(int32_t, rd_kafka_message_leader_epoch, (const rd_kafka_message_t *))                                           \
  X(const char *, rd_kafka_topic_name, (const rd_kafka_topic_t *))                                                  \
  X(const char *, rd_kafka_message_errstr, (const rd_kafka_message_t *))

#define DECLARE(result, name, arguments) extern result(*kafka_##name) arguments;
KAFKA_CALLS(DECLARE)
#undef DECLARE

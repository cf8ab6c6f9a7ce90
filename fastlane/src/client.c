/* Finds librdkafka's calls, and learns the handle of the client that is being made: librdkafka loads this library as a
 * plugin, and an interceptor tells it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include "client.h"

#define DEFINE(result, name, arguments) result(*kafka_##name) arguments;
KAFKA_CALLS(DEFINE)
#undef DEFINE

/* Returns librdkafka's version; -1 if a call is missing, whose name is in `missing`. */
API int fl_bind(void *library, char *missing, size_t size) {
#define FIND(result, name, arguments)                        \
  *(void **)&kafka_##name = dlsym(library, #name);           \
  if (!kafka_##name) return snprintf(missing, size, "%s", #name), -1;
  KAFKA_CALLS(FIND)
#undef FIND
  return kafka_rd_kafka_version();
}

/* The checksum of the modules of Python that this was compiled with. */
API uint32_t fl_sources(void) { return FL_SOURCES; }

/* Interceptors run on the thread that makes the client. */
static _Thread_local rd_kafka_t *born;
static _Thread_local int births;

static rd_kafka_resp_err_t on_destroy(rd_kafka_t *rk, void *opaque) {
  (void)opaque;
  readers_forget(rk);
  return KAFKA_OK;
}

static rd_kafka_resp_err_t on_new(rd_kafka_t *rk, const rd_kafka_conf_t *conf, void *opaque, char *error, size_t size) {
  (void)conf, (void)opaque, (void)error, (void)size;
  rd_kafka_resp_err_t failed = kafka_rd_kafka_interceptor_add_on_destroy(rk, "sidecar", on_destroy, NULL);
  if (failed) return failed;
  born = rk;
  births++;
  return KAFKA_OK;
}

/* librdkafka calls this for `plugin.library.paths`. */
API rd_kafka_resp_err_t conf_init(rd_kafka_conf_t *conf, void **opaque, char *error, size_t size) {
  (void)opaque;
  if (!kafka_rd_kafka_conf_interceptor_add_on_new) return snprintf(error, size, "not bound"), KAFKA_STATE;
  return kafka_rd_kafka_conf_interceptor_add_on_new(conf, "sidecar", on_new, NULL);
}

/* From here on, clients that this thread makes are counted. */
API void fl_expect(void) {
  born = NULL;
  births = 0;
}

/* The one client that was made since; NULL if there is none, or more than one. */
API void *fl_born(void) { return births == 1 ? born : NULL; }

#pragma once
#include "lane.h"

/* reader.c: the client is being destroyed, so its readers let go of it. On a thread of librdkafka. */
void readers_forget(rd_kafka_t *rk);

#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/macros.h"
#include "guest/process.h"
#include "protocol/session.pb-c.h"

/* Events to the host, on the conversation that is on; without one they are dropped. */
struct server;

int event_send(struct server *s, uint32_t channel, const Hearth__V1__Event *event);

void event_error(struct server *s, uint32_t channel, int code, int errnum, const char *format, ...)
    _printf_(5, 6);
void event_done(struct server *s, uint32_t channel);
void event_closed(struct server *s, uint32_t channel, const char *reason);
void event_started(struct process *p);
int event_exit(struct process *p);
int event_stream_end(struct stream *s);
void event_window(struct stream *s);
/* All processes, in as many events as it takes. */
void event_list(struct server *s, uint32_t channel);
void event_hello(struct server *s, uint32_t channel, const Hearth__V1__Hello *hello,
                 bool continued);
void event_stats(struct server *s, uint32_t channel);

/* Control bytes and what is not UTF-8 become '?': a protobuf string holds neither. */
void text_clean(char *text);

/*
 * loadgen: one publisher, N subscribers, one thread, one epoll. What its files share.
 *
 *   main.c      options
 *   phases.c    the workloads: fan-out, ingest, latency, resend, idle
 *   net.c       connections, buffers, the loop
 *   streamr.c   WebSocket and Streamr's control layer: this node, and copybroker
 *   nats.c      nats-server, and its JetStream
 *   redis.c     RESP: pub/sub, and Streams
 *   mqtt.c      MQTT 3.1.1 with QoS 0: mosquitto
 *
 * A protocol is a row: greet, consume, publish, and resend where the server keeps what it gets.
 */
#pragma once
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SCRATCH (1u << 20)       /* one read; also the largest frame accepted */
#define MAX_SIZE 60000u          /* content bytes: a request stays within a 16-bit length */
#define MIN_SIZE 40u             /* room for the content's own counter */
#define ENVELOPE 1000u           /* what any protocol puts around a content */
#define STALL_MS 10000           /* nothing at all for so long: the server has stopped */
#define FIRST_NUMBER 1000000000u /* every number has ten digits, so every message has the same size */
#define LITERAL(s) (sizeof(s) - 1)

enum mode { FANOUT, INGEST, LATENCY, RESEND, IDLE };
enum state { OPENING, SUBSCRIBING, READY };

struct buffer {
    char *bytes;
    size_t len, cap;
};

struct conn {
    int fd;
    enum state state;
    int publisher;
    int wants_out;       /* EPOLLOUT is armed */
    unsigned index;      /* among the subscribers */
    uint64_t received;   /* deliveries so far = number of the next message it must get */
    char last_id[48];    /* redis Streams: the last entry read */
    struct buffer stash; /* the beginning of a frame whose end has not been read */
    struct buffer out;   /* what the socket has not taken yet */
};

/* A message in flight: the bytes a subscriber must see, how many have seen them, when it was to be sent. */
struct slot {
    char *bytes;
    size_t len;
    uint64_t delivered;
    double due;
};

struct protocol {
    const char *name;
    void (*greet)(struct conn *c);                              /* the TCP connection stands */
    size_t (*consume)(struct conn *c, char *bytes, size_t len); /* whole frames only; returns bytes used */
    void (*publish)(struct conn *c, struct slot *slot);         /* compose the next message and queue it */
    void (*resend)(struct conn *c);                             /* ask for opt.count messages; NULL: it keeps none */
};

extern const struct protocol STREAMR, NATS, JETSTREAM, REDIS, REDIS_STREAMS, MQTT;

extern struct options {
    unsigned port, subscribers, window, size, versions, times;
    uint64_t warmup, messages, first, count, total;
    double seconds;
    enum mode mode;
    const char *file;
    const struct protocol *protocol;
} opt;

/* net.c */
extern unsigned opened, ready;
extern uint64_t bytes_in, bytes_out;
extern int stdin_ready;
__attribute__((noreturn, format(printf, 1, 2))) void fail(const char *format, ...);
double seconds(clockid_t clock);
void append(struct buffer *b, const void *bytes, size_t len);
__attribute__((format(printf, 2, 3))) void say(struct conn *c, const char *format, ...);
const char *role(const struct conn *c);
void open_loop(void);
void open_conn(struct conn *c, int publisher, unsigned index);
void became_ready(struct conn *c);
void flush(struct conn *c);
int turn(int timeout_ms);
void watch_stdin(int on);
int shown(size_t len); /* how much of so many bytes to show in an error */

/* phases.c: what protocols tell */
extern uint64_t published;                                     /* messages of this process so far */
void delivered(struct conn *c, const char *bytes, size_t len); /* a subscriber got exactly these bytes */
void delivered_content(struct conn *c, const char *bytes, size_t len); /* ... got the content within these bytes */
void acknowledged(void);                                       /* the server says it has kept the next message */
void resent(const char *bytes, size_t len);                    /* one message of a resend, content within */
void resend_ended(void);
uint64_t next_number(void);                                    /* of the message being published */
size_t content(char *to, const char *quote);
const char *prepared(size_t *len);                             /* the next message of --file, or NULL without one */
void run_workload(void);

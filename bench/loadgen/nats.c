/*
 * nats-server: its text protocol, and JetStream, which is requests and answers over it.
 *
 * NATS: one subject, plain subscriptions, nothing kept.
 * JETSTREAM: the publisher makes the stream BENCH over that subject, on files; each subscriber has a push consumer of
 * its own that needs no acknowledgements; ingest waits for the stream's acknowledgement of each message, whose
 * sequence must go up by one; a resend is a consumer from a sequence on, pulled in batches.
 */
#include "loadgen.h"
#include <unistd.h>

#define CONNECT "CONNECT {\"verbose\":false,\"pedantic\":false,\"name\":\"loadgen\"}\r\n"
#define DATA_SID 1
#define ANSWER_SID 2
#define PULL 4000u /* messages of one pull request; the next is sent when half of them are here */

static const char CREATE_STREAM[] =
    "{\"name\":\"BENCH\",\"subjects\":[\"bench\"],\"storage\":\"file\",\"retention\":\"limits\",\"num_replicas\":1,"
    "\"max_consumers\":-1,\"max_msgs\":-1,\"max_bytes\":-1,\"max_age\":0,\"discard\":\"old\"}";

static uint64_t last_sequence; /* of the stream, as its acknowledgements say */
static uint64_t asked, consumers;

static int is_jetstream(void)
{
    return opt.protocol == &JETSTREAM;
}

static void greet(struct conn *c)
{
    (void)c; /* the server speaks first: INFO */
}

static void request(struct conn *c, const char *subject, const char *reply, const char *body)
{
    say(c, "PUB %s %s %zu\r\n%s\r\n", subject, reply, strlen(body), body);
}

static void introduce(struct conn *c)
{
    char body[400], reply[40];
    int pid = (int)getpid(); /* consumers of the process before linger, and must not find our subjects */
    c->state = SUBSCRIBING;
    if (!is_jetstream()) {
        say(c, c->publisher ? CONNECT "PING\r\n" : CONNECT "SUB bench 1\r\nPING\r\n");
    } else if (c->publisher) {
        say(c, CONNECT "SUB pulled 1\r\nSUB acks 2\r\n");
        request(c, "$JS.API.STREAM.CREATE.BENCH", "acks", CREATE_STREAM);
    } else {
        say(c, CONNECT "SUB to.%d.%u 1\r\nSUB made.%d.%u 2\r\n", pid, c->index, pid, c->index);
        sprintf(body,
                "{\"stream_name\":\"BENCH\",\"config\":{\"deliver_subject\":\"to.%d.%u\",\"deliver_policy\":\"new\","
                "\"ack_policy\":\"none\"}}",
                pid, c->index);
        sprintf(reply, "made.%d.%u", pid, c->index);
        request(c, "$JS.API.CONSUMER.CREATE.BENCH", reply, body);
    }
}

/* A line that is not MSG. PONG answers the PING that follows our CONNECT and SUB. */
static void control(struct conn *c, const char *line, size_t len)
{
    if (c->state == OPENING && len > 5 && !memcmp(line, "INFO ", 5)) {
        introduce(c);
    } else if (c->state == SUBSCRIBING && len == 4 && !memcmp(line, "PONG", 4)) {
        became_ready(c);
    } else if (len == 4 && !memcmp(line, "PING", 4)) {
        say(c, "PONG\r\n");
    } else if (c->state == OPENING || len < 5 || memcmp(line, "INFO ", 5)) {
        fail("the %s did not expect: %.*s", role(c), shown(len), line);
    }
}

static uint64_t number_after(const char *body, size_t len, const char *name)
{
    const char *found = memmem(body, len, name, strlen(name));
    return found ? strtoull(found + strlen(name), NULL, 10) : 0;
}

static void pull(struct conn *c)
{
    uint64_t left = opt.count - asked, batch = left < PULL / 2 ? left : PULL / 2;
    char subject[80], body[80];
    asked += batch;
    sprintf(subject, "$JS.API.CONSUMER.MSG.NEXT.BENCH.r%" PRIu64, consumers);
    sprintf(body, "{\"batch\":%" PRIu64 "}", batch);
    if (batch)
        request(c, subject, "pulled", body);
}

/* Answers of JetStream to its maker of streams and consumers, and its acknowledgements. */
static void answer(struct conn *c, const char *body, size_t len)
{
    if (memmem(body, len, "\"error\"", 7))
        fail("JetStream refused: %.*s", shown(len), body);
    if (c->state == SUBSCRIBING) {
        last_sequence = number_after(body, len, "\"last_seq\":");
        became_ready(c);
    } else if (opt.mode == INGEST) {
        uint64_t sequence = number_after(body, len, "\"seq\":");
        if (sequence != ++last_sequence)
            fail("acknowledged as %" PRIu64 " in the stream, not %" PRIu64 ": %.*s", sequence, last_sequence, shown(len),
                 body);
        acknowledged();
    } else if (opt.mode == RESEND) {
        asked = 0;
        pull(c);
        pull(c);
    } else {
        fail("the %s did not expect: %.*s", role(c), shown(len), body);
    }
}

static void pulled(struct conn *c, const char *body, size_t len)
{
    static uint64_t got;
    resent(body, len);
    if (++got == opt.count) {
        got = 0;
        say(c, "PUB $JS.API.CONSUMER.DELETE.BENCH.r%" PRIu64 " 0\r\n\r\n", consumers);
        resend_ended();
    } else if (got % (PULL / 2) == 0) {
        pull(c);
    }
}

static size_t consume(struct conn *c, char *bytes, size_t len)
{
    size_t used = 0;
    char *end;
    while ((end = memchr(bytes + used, '\n', len - used))) {
        char *line = bytes + used;
        size_t line_len = (size_t)(end - line);
        if (line_len < 4 || end[-1] != '\r')
            fail("a line without its end: %.*s", shown(line_len), line);
        if (memcmp(line, "MSG ", 4)) {
            control(c, line, line_len - 1);
            used += line_len + 1;
            continue;
        }
        /* MSG subject sid [reply] bytes: the last field is the payload's length */
        char *digits = end - 1, *sid = memchr(line + 4, ' ', line_len - 4);
        while (digits > line && digits[-1] >= '0' && digits[-1] <= '9')
            digits--;
        size_t size = strtoul(digits, NULL, 10);
        if (!sid || size > SCRATCH / 2)
            fail("a message of %zu bytes: %.*s", size, shown(line_len), line);
        if (len - used < line_len + 1 + size + 2)
            break;
        if (memcmp(end + 1 + size, "\r\n", 2))
            fail("a payload that does not end where its length says");
        if (strtoul(sid + 1, NULL, 10) == ANSWER_SID)
            answer(c, end + 1, size);
        else if (c->publisher)
            pulled(c, end + 1, size);
        else
            delivered(c, end + 1, size);
        used += line_len + 1 + size + 2;
    }
    return used;
}

static void publish(struct conn *c, struct slot *slot)
{
    char head[40];
    slot->len = content(slot->bytes, "\"");
    const char *reply = opt.mode == INGEST ? "acks " : "";
    append(&c->out, head, (size_t)sprintf(head, "PUB bench %s%zu\r\n", reply, slot->len));
    append(&c->out, slot->bytes, slot->len);
    append(&c->out, "\r\n", 2);
}

static void resend(struct conn *c)
{
    char subject[80], body[400];
    consumers++;
    sprintf(subject, "$JS.API.CONSUMER.DURABLE.CREATE.BENCH.r%" PRIu64, consumers);
    sprintf(body,
            "{\"stream_name\":\"BENCH\",\"config\":{\"durable_name\":\"r%" PRIu64 "\",\"ack_policy\":\"none\","
            "\"mem_storage\":true,\"deliver_policy\":\"by_start_sequence\",\"opt_start_seq\":%" PRIu64 "}}",
            consumers, opt.total - opt.count + 1);
    request(c, subject, "acks", body);
}

const struct protocol NATS = {"nats", greet, consume, publish, NULL};
const struct protocol JETSTREAM = {"jetstream", greet, consume, publish, resend};

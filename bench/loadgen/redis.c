/*
 * redis: RESP2 in pipelines.
 *
 * REDIS: pub/sub; each PUBLISH is answered with the number of receivers, which must be all subscribers.
 * REDIS_STREAMS: XADD, answered with the entry's id once it is on disk (with appendfsync always); subscribers read
 * with XREAD BLOCK and ask again from the last id they got; a resend is XRANGE in pages, the last N are XREVRANGE as
 * redis has no other way to them, turned round here as a client would.
 */
#include "loadgen.h"

#define PAGE "1000"
#define MAX_LAST 1000u /* more are read from the beginning, page by page */

static uint64_t paged; /* entries of this resend so far */
static struct {
    const char *bytes;
    size_t len;
} last_entries[MAX_LAST];

static int is_streams(void)
{
    return opt.protocol == &REDIS_STREAMS;
}

static void bulk(struct conn *c, const char *bytes, size_t len)
{
    char head[24];
    append(&c->out, head, (size_t)sprintf(head, "$%zu\r\n", len));
    append(&c->out, bytes, len);
    append(&c->out, "\r\n", 2);
}

static void command(struct conn *c, unsigned words, ...)
{
    char head[24];
    __builtin_va_list args;
    append(&c->out, head, (size_t)sprintf(head, "*%u\r\n", words));
    __builtin_va_start(args, words);
    for (unsigned i = 0; i < words; i++) {
        const char *word = __builtin_va_arg(args, const char *);
        bulk(c, word, strlen(word));
    }
    __builtin_va_end(args);
}

static void read_on(struct conn *c, const char *from)
{
    command(c, 8, "XREAD", "COUNT", PAGE, "BLOCK", "0", "STREAMS", "bench", from);
}

/* redis handles what came in one piece in one turn: when PONG is here, the XREAD behind the PING waits. */
static void greet(struct conn *c)
{
    c->state = SUBSCRIBING;
    if (!c->publisher && !is_streams()) {
        command(c, 2, "SUBSCRIBE", "bench");
    } else {
        command(c, 1, "PING");
        if (!c->publisher)
            read_on(c, "$");
    }
    flush(c);
}

/* ------------------------------------------------------- reading answers  */

/* A value at *at: its length or count in *n, its bytes for a string. Returns its type, or 0 while it is not whole. */
static char value(const char **at, const char *end, int64_t *n, const char **bytes)
{
    const char *line = *at, *stop = memchr(line, '\n', (size_t)(end - line));
    if (!stop)
        return 0;
    *n = strtoll(line + 1, NULL, 10);
    *bytes = line + 1;
    *at = stop + 1;
    if (*line == '-')
        fail("redis refused: %.*s", (int)(stop - line), line);
    if (*line == '$' && *n >= 0) {
        *bytes = *at;
        if (end - *at < *n + 2)
            return 0;
        *at += *n + 2;
    }
    return *line;
}

static int array(const char **at, const char *end, int64_t count)
{
    const char *bytes;
    int64_t n;
    char type = value(at, end, &n, &bytes);
    if (type && (type != '*' || n != count))
        fail("redis sent something else than an array of %" PRId64, count);
    return type != 0;
}

static int string(const char **at, const char *end, const char **bytes, int64_t *n)
{
    char type = value(at, end, n, bytes);
    if (type && (type != '$' || *n < 0))
        fail("redis sent something else than a string");
    return type != 0;
}

/* One entry of a stream: [id, [name, content]]. */
static int entry(const char **at, const char *end, const char **id, int64_t *id_len, const char **body, int64_t *len)
{
    const char *name;
    int64_t n;
    return array(at, end, 2) && string(at, end, id, id_len) && array(at, end, 2) && string(at, end, &name, &n) &&
           string(at, end, body, len);
}

/* So many entries, all of which must be here; in the second pass they are handed on. Returns 0 while not whole. */
static int entries(struct conn *c, const char **at, const char *end, int64_t count, int hand_on)
{
    const char *id = NULL, *body;
    int64_t id_len = 0, len;
    for (int64_t i = 0; i < count; i++) {
        if (!entry(at, end, &id, &id_len, &body, &len))
            return 0;
        if (!hand_on)
            continue;
        if (!c->publisher) {
            delivered(c, body, (size_t)len);
        } else if (opt.count <= MAX_LAST) {
            last_entries[i].bytes = body;
            last_entries[i].len = (size_t)len;
        } else {
            resent(body, (size_t)len);
        }
    }
    if (id_len >= (int64_t)sizeof c->last_id)
        fail("an id of %" PRId64 " bytes", id_len);
    if (hand_on && id)
        sprintf(c->last_id, "%.*s", (int)id_len, id);
    return 1;
}

static void ask_page(struct conn *c)
{
    char from[64];
    sprintf(from, paged ? "(%s" : "-", c->last_id);
    command(c, 6, "XRANGE", "bench", from, "+", "COUNT", PAGE);
    flush(c);
}

static void page_came(struct conn *c, int64_t count)
{
    paged += (uint64_t)count;
    if (opt.count <= MAX_LAST)
        for (int64_t i = count; i-- > 0;)
            resent(last_entries[i].bytes, last_entries[i].len);
    if (paged >= opt.count || count == 0)
        resend_ended();
    else
        ask_page(c);
}

/* XREAD's answer: [[stream, [entry, ...]]]; XRANGE's: [entry, ...]. */
static int stream_answer(struct conn *c, const char **at, const char *end)
{
    const char *start, *bytes;
    int64_t count, n;
    if (!c->publisher && !(array(at, end, 1) && array(at, end, 2) && string(at, end, &bytes, &n)))
        return 0;
    if (!value(at, end, &count, &bytes))
        return 0;
    start = *at;
    if (!entries(c, at, end, count, 0))
        return 0;
    entries(c, &start, end, count, 1);
    if (c->publisher) {
        page_came(c, count);
    } else {
        read_on(c, c->last_id);
        flush(c);
    }
    return 1;
}

static int pushed(struct conn *c, const char **at, const char *end)
{
    const char *kind, *channel, *body;
    int64_t n, m, len;
    if (!array(at, end, 3) || !string(at, end, &kind, &n) || !string(at, end, &channel, &m))
        return 0;
    if (n == 7 && !memcmp(kind, "message", 7)) {
        if (!string(at, end, &body, &len))
            return 0;
        delivered(c, body, (size_t)len);
        return 1;
    }
    if (c->state != SUBSCRIBING || !value(at, end, &len, &body))
        return 0;
    became_ready(c);
    return 1;
}

/* PONG, the receivers of a PUBLISH, the id of an XADD. */
static int plain_answer(struct conn *c, const char **at, const char *end)
{
    const char *bytes;
    int64_t n;
    char type = value(at, end, &n, &bytes);
    if (!type)
        return 0;
    if (c->state == SUBSCRIBING && type == '+')
        became_ready(c);
    else if (c->publisher && is_streams() && type == '$') {
        if (opt.mode == INGEST)
            acknowledged();
    } else if (!c->publisher || type != ':' || n != opt.subscribers)
        fail("the %s did not expect: %c%.*s", role(c), type, shown((size_t)(end - bytes)), bytes);
    return 1;
}

static size_t consume(struct conn *c, char *bytes, size_t len)
{
    const char *at = bytes, *end = bytes + len;
    while (at < end) {
        const char *next = at;
        int whole = *at != '*'     ? plain_answer(c, &next, end)
                    : is_streams() ? stream_answer(c, &next, end)
                                   : pushed(c, &next, end);
        if (!whole)
            break;
        at = next;
    }
    return (size_t)(at - bytes);
}

static void publish(struct conn *c, struct slot *slot)
{
    static const char XADD[] = "*5\r\n$4\r\nXADD\r\n$5\r\nbench\r\n$1\r\n*\r\n$1\r\nm\r\n";
    static const char PUBLISH[] = "*3\r\n$7\r\nPUBLISH\r\n$5\r\nbench\r\n";
    slot->len = content(slot->bytes, "\"");
    if (is_streams())
        append(&c->out, XADD, LITERAL(XADD));
    else
        append(&c->out, PUBLISH, LITERAL(PUBLISH));
    bulk(c, slot->bytes, slot->len);
}

static void resend(struct conn *c)
{
    char count[24];
    paged = 0;
    if (opt.count > MAX_LAST && opt.count != opt.total)
        fail("at most the last %u, or all", MAX_LAST);
    if (opt.count > MAX_LAST) {
        ask_page(c);
        return;
    }
    sprintf(count, "%" PRIu64, opt.count);
    command(c, 6, "XREVRANGE", "bench", "+", "-", "COUNT", count);
    flush(c);
}

const struct protocol REDIS = {"redis", greet, consume, publish, NULL};
const struct protocol REDIS_STREAMS = {"redis-streams", greet, consume, publish, resend};

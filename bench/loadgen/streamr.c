/*
 * Streamr's control layer over WebSocket (RFC 6455), as a client speaks it: this node, and copybroker.
 *
 * The publisher speaks control 2 and message 32. Subscriber i speaks row i modulo --versions of VERSIONS; 2/32 is
 * compared byte by byte, the older ones by the content that their envelope holds.
 */
#include "loadgen.h"

/* RFC 6455 section 1.3: this key is answered with this accept value. */
#define WS_KEY "dGhlIHNhbXBsZSBub25jZQ=="
#define WS_ACCEPT "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
#define WS_TEXT 1u
#define WS_CLOSE 8u
#define WS_PING 9u
#define WS_PONG 10u

#define MAX_LAST 10000u /* what a node gives to ResendLast; more is asked for with ResendFrom */

static const struct version {
    const char *query, *subscribe, *subscribed, *broadcast;
    int exact; /* the broadcast is head, message, "]" and nothing else */
} VERSIONS[] = {
    {"controlLayerVersion=2&messageLayerVersion=32", "[2,9,\"r1\",\"bench\",0,null]", "[2,2,\"r1\",\"bench\",0]",
     "[2,0,\"\",", 1},
    {"controlLayerVersion=1&messageLayerVersion=31", "[1,9,\"bench\",0,null]", "[1,2,\"bench\",0]", "[1,0,[31,", 0},
    {"controlLayerVersion=0&messageLayerVersion=29",
     "{\"type\":\"subscribe\",\"stream\":\"bench\",\"partition\":0}", "[0,2,", "[0,0,", 0},
};

static uint64_t last_ms; /* timestamp of the message before, for prevMsgRef */
static uint64_t acks;

static const struct version *version_of(const struct conn *c)
{
    return &VERSIONS[c->publisher ? 0 : c->index % opt.versions];
}

static uint32_t next_mask(void)
{
    static uint32_t x = 2463534242u; /* xorshift: a server must unmask, so no key of zeros */
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    return x;
}

/* RFC 6455 section 5.3: a client masks its payload. Queues the frame; masks in place, in the queue. */
static void ws_queue(struct conn *c, unsigned opcode, const char *payload, size_t len)
{
    unsigned char head[8];
    size_t n = 0;
    uint32_t mask = next_mask();
    head[n++] = (unsigned char)(0x80u | opcode);
    if (len < 126) {
        head[n++] = (unsigned char)(0x80u | len);
    } else if (len < 65536) {
        head[n++] = 0x80u | 126u;
        head[n++] = (unsigned char)(len >> 8);
        head[n++] = (unsigned char)len;
    } else {
        fail("a request of %zu bytes", len);
    }
    memcpy(head + n, &mask, 4);
    append(&c->out, head, n + 4);
    append(&c->out, payload, len);
    unsigned char *p = (unsigned char *)c->out.bytes + c->out.len - len;
    const uint64_t wide = (uint64_t)mask << 32 | mask;
    size_t i = 0;
    for (; i + 8 <= len; i += 8) {
        uint64_t word;
        memcpy(&word, p + i, 8);
        word ^= wide;
        memcpy(p + i, &word, 8);
    }
    for (; i < len; i++)
        p[i] ^= ((const unsigned char *)&mask)[i & 3];
}

static void greet(struct conn *c)
{
    say(c,
        "GET /api/v1/ws?%s%s HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " WS_KEY "\r\n\r\n",
        version_of(c)->query, c->publisher && opt.mode == INGEST ? "&publishAck=1" : "");
}

/* The answer to the upgrade; returns its length, or 0 while it is not whole. */
static size_t upgraded(struct conn *c, char *bytes, size_t len)
{
    char *end = memmem(bytes, len, "\r\n\r\n", 4);
    if (!end)
        return 0;
    size_t head = (size_t)(end - bytes) + 4;
    if (head < 12 || memcmp(bytes, "HTTP/1.1 101", 12) || !memmem(bytes, head, WS_ACCEPT, LITERAL(WS_ACCEPT)))
        fail("the upgrade with %s was refused: %.*s", version_of(c)->query, shown(len), bytes);
    if (c->publisher) {
        became_ready(c);
    } else {
        c->state = SUBSCRIBING;
        ws_queue(c, WS_TEXT, version_of(c)->subscribe, strlen(version_of(c)->subscribe));
        flush(c);
    }
    return head;
}

static int begins(const char *text, size_t len, const char *with)
{
    size_t size = strlen(with);
    return len >= size && !memcmp(text, with, size);
}

static void unexpected(const struct conn *c, const char *text, size_t len)
{
    fail("the %s did not expect: %.*s", role(c), shown(len), text);
}

static void to_publisher(struct conn *c, const char *text, size_t len)
{
    if (opt.mode == INGEST && begins(text, len, "[2,100,\"p") && memmem(text, len, "\"stored\"", 8)) {
        if (strtoull(text + 9, NULL, 10) != FIRST_NUMBER + opt.first + acks)
            fail("acknowledgement %" PRIu64 " is out of order: %.*s", acks, shown(len), text);
        acks++;
        acknowledged();
    } else if (opt.mode == RESEND && begins(text, len, "[2,1,\"r2\",")) {
        resent(text, len);
    } else if (opt.mode == RESEND && begins(text, len, "[2,0,\"\",")) { /* copybroker sends what it wrote down */
        resent(text, len);
    } else if (opt.mode == RESEND && begins(text, len, "[2,5,\"r2\",")) {
        resend_ended();
    } else if (opt.mode != RESEND || !begins(text, len, "[2,4,\"r2\",")) {
        unexpected(c, text, len);
    }
}

static void to_subscriber(struct conn *c, const char *text, size_t len)
{
    const struct version *v = version_of(c);
    size_t head = strlen(v->broadcast);
    if (c->state == SUBSCRIBING && begins(text, len, v->subscribed))
        became_ready(c);
    else if (c->state != READY || !begins(text, len, v->broadcast))
        unexpected(c, text, len);
    else if (v->exact)
        delivered(c, text + head, len - head - 1);
    else
        delivered_content(c, text + head, len - head);
}

static void ws_frame(struct conn *c, unsigned opcode, const char *payload, size_t len)
{
    switch (opcode) {
    case WS_TEXT:
        (c->publisher ? to_publisher : to_subscriber)(c, payload, len);
        break;
    case WS_PING:
        ws_queue(c, WS_PONG, payload, len);
        flush(c);
        break;
    case WS_PONG:
        break;
    case WS_CLOSE:
        fail("the server closed a %s: %.*s", role(c), len > 2 ? (int)len - 2 : 0, payload + 2);
    default:
        fail("a frame with opcode %u", opcode);
    }
}

/* RFC 6455 section 5.2, as a client sees it: unmasked, and here neither fragmented nor compressed. */
static size_t consume(struct conn *c, char *bytes, size_t len)
{
    const unsigned char *p = (const unsigned char *)bytes;
    size_t used = 0;
    if (c->state == OPENING && !(used = upgraded(c, bytes, len)))
        return 0;
    while (len - used >= 2) {
        const unsigned char *f = p + used;
        size_t head = 2;
        uint64_t size = f[1];
        if ((f[0] & 0xf0) != 0x80 || f[1] & 0x80)
            fail("a masked, fragmented or extended frame (%02x %02x)", f[0], f[1]);
        if (size >= 126) {
            head = size == 126 ? 4 : 10;
            if (len - used < head)
                break;
            size = 0;
            for (size_t i = 2; i < head; i++)
                size = size << 8 | f[i];
        }
        if (size > SCRATCH - head)
            fail("a frame of %" PRIu64 " bytes", size);
        if (len - used < head + size)
            break;
        ws_frame(c, f[0] & 0x0f, bytes + used + head, size);
        used += head + size;
    }
    return used;
}

/* [32,[stream,partition,timestamp,sequence,publisher,chain],prev,27,0,0,null,content,null,0,null]: unsigned. */
static char *compose(char *p)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    uint64_t ms = (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
    uint64_t number = next_number();
    ms = ms < last_ms ? last_ms : ms; /* the reference before must not be after */
    p += sprintf(p, "[32,[\"bench\",0,%" PRIu64 ",%" PRIu64 ",\"publisher\",\"chain\"],", ms, number);
    p += published ? sprintf(p, "[%" PRIu64 ",%" PRIu64 "]", last_ms, number - 1) : sprintf(p, "null");
    p += sprintf(p, ",27,0,0,null,\"");
    p += content(p, "\\\"");
    p += sprintf(p, "\",null,0,null]");
    last_ms = ms;
    return p;
}

static void publish(struct conn *c, struct slot *slot)
{
    static char request[MAX_SIZE + 2 * ENVELOPE];
    size_t head = (size_t)sprintf(request, "[2,8,\"p%" PRIu64 "\",", next_number());
    const char *ready_made = prepared(&slot->len);
    if (ready_made)
        memcpy(request + head, ready_made, slot->len);
    else
        slot->len = (size_t)(compose(request + head) - request) - head;
    memcpy(slot->bytes, request + head, slot->len);
    memcpy(request + head + slot->len, ",null]", 6);
    ws_queue(c, WS_TEXT, request, head + slot->len + 6);
}

static void resend(struct conn *c)
{
    char request[200];
    int len;
    if (opt.count <= MAX_LAST)
        len = sprintf(request, "[2,11,\"r2\",\"bench\",0,%" PRIu64 ",null]", opt.count);
    else if (opt.count == opt.total)
        len = sprintf(request, "[2,12,\"r2\",\"bench\",0,[0,0],null,null]");
    else
        fail("the last %" PRIu64 " messages cannot be asked for: at most %u, or all", opt.count, MAX_LAST);
    ws_queue(c, WS_TEXT, request, (size_t)len);
    flush(c);
}

const struct protocol STREAMR = {"streamr", greet, consume, publish, resend};

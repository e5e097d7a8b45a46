/*
 * loadgen: one publisher, N subscribers, one thread, one epoll.
 *
 * It keeps W messages in flight: a message leaves the window when the slowest
 * subscriber has it. Every delivery is compared, byte by byte, with the message
 * that subscriber must get next, so a lost, repeated, reordered or altered
 * message ends the run with an error and never becomes a figure.
 *
 * It talks with fanout.py in lines, so that the server's CPU can be read at the
 * borders of the measured phase:
 *
 *   stdout "ready"   everybody is subscribed and the warm-up is delivered
 *   stdin  newline   go
 *   stdout {...}     what was measured
 *   stdin  newline   end (exit 0, unless something came that nobody sent)
 *
 * With --idle there is no publisher: "ready" says that N connections are
 * subscribed; they are held (and pings answered) until the next newline.
 *
 * A protocol is a row of the table PROTOCOLS: greet, consume, publish.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define SCRATCH (1u << 20)      /* one read; also the largest frame accepted */
#define MAX_SIZE 60000u         /* content bytes: a request stays within a 16-bit length */
#define MIN_SIZE 40u            /* room for the content's own counter */
#define MAX_OPENING 32u         /* connections in their handshake at once: below any listen backlog */
#define STALL_MS 10000          /* nothing at all for so long: the server has stopped */
#define EVENTS 256
#define FIRST_NUMBER 1000000000u /* every number has ten digits, so every message has the same size */

/* ------------------------------------------------------------------ state */

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
    uint64_t received;   /* deliveries so far = number of the next message it must get */
    struct buffer stash; /* the beginning of a frame whose end has not been read */
    struct buffer out;   /* what the socket has not taken yet */
};

/* A message in flight: the bytes a subscriber must see, and how many have seen them. */
struct slot {
    char *bytes;
    size_t len;
    uint64_t delivered;
};

struct protocol {
    const char *name;
    void (*greet)(struct conn *c);                              /* the TCP connection stands */
    size_t (*consume)(struct conn *c, char *bytes, size_t len); /* whole frames only; returns bytes used */
    void (*publish)(struct conn *c, struct slot *slot);         /* compose the next message and queue it */
};

static struct {
    unsigned port, subscribers, window, size;
    uint64_t warmup, messages;
    int idle;
    const struct protocol *protocol;
} opt = {.subscribers = 100, .window = 64, .size = 300, .warmup = 2000, .messages = 20000};

static int epoll_fd;
static struct conn *conns; /* the subscribers, then the publisher */
static unsigned opened, ready;
static struct slot *ring;             /* message i lives in ring[i % window] */
static uint64_t published, completed; /* completed: delivered to all */
static uint64_t bytes_in, bytes_out;
static char scratch[SCRATCH];
static int stdin_ready;
static uint64_t last_ms; /* timestamp of the message before, for prevMsgRef */

/* -------------------------------------------------------------- utilities */

__attribute__((noreturn, format(printf, 1, 2))) static void fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("loadgen: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

static double seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void reserve(struct buffer *b, size_t cap)
{
    if (cap <= b->cap)
        return;
    cap = cap < 2 * b->cap ? 2 * b->cap : cap;
    b->bytes = realloc(b->bytes, cap);
    if (!b->bytes)
        fail("out of memory");
    b->cap = cap;
}

static void append(struct buffer *b, const void *bytes, size_t len)
{
    reserve(b, b->len + len);
    memcpy(b->bytes + b->len, bytes, len);
    b->len += len;
}

static const char *role(const struct conn *c)
{
    return c->publisher ? "publisher" : "subscriber";
}

/* ---------------------------------------------------------------- sockets */

static void watch(struct conn *c, int op)
{
    struct epoll_event event = {.events = EPOLLIN | (c->wants_out ? EPOLLOUT : 0), .data.ptr = c};
    if (epoll_ctl(epoll_fd, op, c->fd, &event))
        fail("epoll_ctl: %s", strerror(errno));
}

static void flush(struct conn *c)
{
    size_t sent = 0;
    while (sent < c->out.len) {
        ssize_t n = send(c->fd, c->out.bytes + sent, c->out.len - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0)
            fail("send to the server as %s: %s", role(c), strerror(errno));
        sent += (size_t)n;
    }
    bytes_out += sent;
    c->out.len -= sent;
    memmove(c->out.bytes, c->out.bytes + sent, c->out.len);
    int wants_out = c->out.len > 0;
    if (wants_out != c->wants_out) {
        c->wants_out = wants_out;
        watch(c, EPOLL_CTL_MOD);
    }
}

static void say(struct conn *c, const char *text)
{
    append(&c->out, text, strlen(text));
    flush(c);
}

static void open_conn(struct conn *c, int publisher)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET,
        .sin_port = htons((uint16_t)opt.port),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
    };
    int one = 1;
    c->publisher = publisher;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0)
        fail("socket: %s", strerror(errno));
    if (connect(c->fd, (struct sockaddr *)&address, sizeof address))
        fail("connect to 127.0.0.1:%u: %s", opt.port, strerror(errno));
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    watch(c, EPOLL_CTL_ADD);
    opened++;
    opt.protocol->greet(c);
}

static void became_ready(struct conn *c)
{
    c->state = READY;
    ready++;
}

/* Read once; give the protocol the bytes left from before and the new ones as one piece. */
static void read_conn(struct conn *c)
{
    size_t have = c->stash.len;
    ssize_t n = recv(c->fd, scratch + have, SCRATCH - have, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n < 0)
        fail("receive as %s: %s", role(c), strerror(errno));
    if (n == 0)
        fail("the server closed a %s after %" PRIu64 " deliveries", role(c), c->received);
    if (have)
        memcpy(scratch, c->stash.bytes, have);
    bytes_in += (uint64_t)n;
    size_t len = have + (size_t)n;
    size_t used = opt.protocol->consume(c, scratch, len);
    if (len - used == SCRATCH)
        fail("a frame larger than %u bytes", SCRATCH);
    c->stash.len = 0;
    if (used < len)
        append(&c->stash, scratch + used, len - used);
}

/* One turn of the loop; returns the number of events, 0 after timeout_ms of silence. */
static int turn(int timeout_ms)
{
    struct epoll_event events[EVENTS];
    int n = epoll_wait(epoll_fd, events, EVENTS, timeout_ms);
    if (n < 0 && errno != EINTR)
        fail("epoll_wait: %s", strerror(errno));
    for (int i = 0; i < n; i++) {
        struct conn *c = events[i].data.ptr;
        if (!c) {
            stdin_ready = 1;
            continue;
        }
        if (events[i].events & EPOLLOUT)
            flush(c);
        if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
            read_conn(c);
    }
    return n < 0 ? 1 : n;
}

/* ------------------------------------------------------------- deliveries */

/* A subscriber got these bytes: they must be exactly the message it waits for. */
static void delivered(struct conn *c, const char *bytes, size_t len)
{
    if (c->received >= published)
        fail("a subscriber got a message more than was published (%" PRIu64 ")", published);
    struct slot *slot = &ring[c->received % opt.window];
    if (len != slot->len || memcmp(bytes, slot->bytes, len))
        fail("delivery %" PRIu64 " is not the message published as such:\n  expected %.*s\n  got      %.*s", c->received,
             (int)slot->len, slot->bytes, (int)(len > 1000 ? 1000 : len), bytes);
    c->received++;
    /* Each subscriber goes through the slots in order, so slots complete in order. */
    if (++slot->delivered == opt.subscribers)
        completed++;
}

/* {"n":1000000007,"x":"aaaa..."} of opt.size bytes; quote is \" where it stands inside a JSON string. */
static size_t content(char *to, const char *quote)
{
    int head = sprintf(to, "{%sn%s:%" PRIu64 ",%sx%s:%s", quote, quote, FIRST_NUMBER + published, quote, quote, quote);
    size_t escapes = 6 * (strlen(quote) - 1);
    size_t fill = opt.size + escapes - (size_t)head - strlen(quote) - 1;
    memset(to + head, 'a', fill);
    return (size_t)head + fill + (size_t)sprintf(to + head + fill, "%s}", quote);
}

/* ---------------------------------------------- streamr: WebSocket, JSON  */

/* RFC 6455 section 1.3: this key is answered with this accept value. */
#define WS_KEY "dGhlIHNhbXBsZSBub25jZQ=="
#define WS_ACCEPT "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
#define WS_TEXT 1u
#define WS_CLOSE 8u
#define WS_PING 9u
#define WS_PONG 10u

#define SUBSCRIBE "[2,9,\"r1\",\"bench\",0,null]"
#define SUBSCRIBED "[2,2,\"r1\",\"bench\",0]"
#define BROADCAST_HEAD "[2,0,\"\","
#define BROADCAST_TAIL "]"
#define PUBLISH_TAIL ",null]"
#define LITERAL(s) (sizeof(s) - 1)

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

static void streamr_greet(struct conn *c)
{
    say(c, "GET /api/v1/ws?controlLayerVersion=2&messageLayerVersion=32 HTTP/1.1\r\n"
           "Host: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
           "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " WS_KEY "\r\n\r\n");
}

/* The answer to the upgrade; returns its length, or 0 while it is not whole. */
static size_t streamr_upgraded(struct conn *c, char *bytes, size_t len)
{
    char *end = memmem(bytes, len, "\r\n\r\n", 4);
    if (!end)
        return 0;
    size_t head = (size_t)(end - bytes) + 4;
    if (head < 12 || memcmp(bytes, "HTTP/1.1 101", 12) || !memmem(bytes, head, WS_ACCEPT, LITERAL(WS_ACCEPT)))
        fail("the upgrade was refused: %.*s", (int)head, bytes);
    if (c->publisher) {
        became_ready(c);
    } else {
        c->state = SUBSCRIBING;
        ws_queue(c, WS_TEXT, SUBSCRIBE, LITERAL(SUBSCRIBE));
        flush(c);
    }
    return head;
}

static void streamr_text(struct conn *c, const char *text, size_t len)
{
    const size_t around = LITERAL(BROADCAST_HEAD) + LITERAL(BROADCAST_TAIL);
    if (c->state == READY && !c->publisher && len > around && !memcmp(text, BROADCAST_HEAD, LITERAL(BROADCAST_HEAD)))
        delivered(c, text + LITERAL(BROADCAST_HEAD), len - around);
    else if (c->state == SUBSCRIBING && len == LITERAL(SUBSCRIBED) && !memcmp(text, SUBSCRIBED, len))
        became_ready(c);
    else
        fail("the %s did not expect: %.*s", role(c), (int)(len > 1000 ? 1000 : len), text);
}

static void ws_frame(struct conn *c, unsigned opcode, const char *payload, size_t len)
{
    switch (opcode) {
    case WS_TEXT:
        streamr_text(c, payload, len);
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
static size_t streamr_consume(struct conn *c, char *bytes, size_t len)
{
    const unsigned char *p = (const unsigned char *)bytes;
    size_t used = 0;
    if (c->state == OPENING && !(used = streamr_upgraded(c, bytes, len)))
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
static void streamr_publish(struct conn *c, struct slot *slot)
{
    static char request[MAX_SIZE + 1000];
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    uint64_t ms = (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
    uint64_t number = FIRST_NUMBER + published;
    ms = ms < last_ms ? last_ms : ms; /* the reference before must not be after */

    size_t head = (size_t)sprintf(request, "[2,8,\"p%" PRIu64 "\",", number);
    char *message = request + head, *p = message;
    p += sprintf(p, "[32,[\"bench\",0,%" PRIu64 ",%" PRIu64 ",\"publisher\",\"chain\"],", ms, number);
    p += published ? sprintf(p, "[%" PRIu64 ",%" PRIu64 "]", last_ms, number - 1) : sprintf(p, "null");
    p += sprintf(p, ",27,0,0,null,\"");
    p += content(p, "\\\"");
    p += sprintf(p, "\",null,0,null]");

    slot->len = (size_t)(p - message);
    memcpy(slot->bytes, message, slot->len);
    memcpy(p, PUBLISH_TAIL, LITERAL(PUBLISH_TAIL));
    ws_queue(c, WS_TEXT, request, head + slot->len + LITERAL(PUBLISH_TAIL));
    last_ms = ms;
}

/* ---------------------------------------------------- nats: text protocol */

#define NATS_CONNECT "CONNECT {\"verbose\":false,\"pedantic\":false,\"name\":\"loadgen\"}\r\n"

static void nats_greet(struct conn *c)
{
    (void)c; /* the server speaks first: INFO */
}

/* A line that is not MSG. PONG answers the PING that follows our CONNECT and SUB. */
static void nats_control(struct conn *c, const char *line, size_t len)
{
    if (c->state == OPENING && len > 5 && !memcmp(line, "INFO ", 5)) {
        c->state = SUBSCRIBING;
        say(c, c->publisher ? NATS_CONNECT "PING\r\n" : NATS_CONNECT "SUB bench 1\r\nPING\r\n");
    } else if (c->state == SUBSCRIBING && len == 4 && !memcmp(line, "PONG", 4)) {
        became_ready(c);
    } else if (len == 4 && !memcmp(line, "PING", 4)) {
        say(c, "PONG\r\n");
    } else if (c->state == OPENING || len < 5 || memcmp(line, "INFO ", 5)) {
        fail("the %s did not expect: %.*s", role(c), (int)(len > 1000 ? 1000 : len), line);
    }
}

static size_t nats_consume(struct conn *c, char *bytes, size_t len)
{
    size_t used = 0;
    char *end;
    while ((end = memchr(bytes + used, '\n', len - used))) {
        char *line = bytes + used;
        size_t line_len = (size_t)(end - line);
        if (line_len < 4 || end[-1] != '\r')
            fail("a line without its end: %.*s", (int)line_len, line);
        if (memcmp(line, "MSG ", 4)) {
            nats_control(c, line, line_len - 1);
            used += line_len + 1;
            continue;
        }
        /* MSG subject sid [reply] bytes: the last field is the payload's length */
        char *digits = end - 1;
        while (digits > line && digits[-1] >= '0' && digits[-1] <= '9')
            digits--;
        size_t size = strtoul(digits, NULL, 10);
        if (size > SCRATCH / 2)
            fail("a payload of %zu bytes", size);
        if (len - used < line_len + 1 + size + 2)
            break;
        if (memcmp(end + 1 + size, "\r\n", 2))
            fail("a payload that does not end where its length says");
        delivered(c, end + 1, size);
        used += line_len + 1 + size + 2;
    }
    return used;
}

static void nats_publish(struct conn *c, struct slot *slot)
{
    char head[40];
    slot->len = content(slot->bytes, "\"");
    append(&c->out, head, (size_t)sprintf(head, "PUB bench %zu\r\n", slot->len));
    append(&c->out, slot->bytes, slot->len);
    append(&c->out, "\r\n", 2);
}

/* ----------------------------------------------------------------- phases */

static const struct protocol PROTOCOLS[] = {
    {"streamr", streamr_greet, streamr_consume, streamr_publish},
    {"nats", nats_greet, nats_consume, nats_publish},
};

static void open_all(void)
{
    unsigned total = opt.subscribers + (opt.idle ? 0 : 1);
    conns = calloc(total, sizeof *conns);
    if (!conns)
        fail("out of memory");
    while (ready < total) {
        while (opened < total && opened - ready < MAX_OPENING)
            open_conn(&conns[opened], opened == opt.subscribers);
        if (!turn(STALL_MS))
            fail("%u of %u connections are open after %d s of silence", ready, total, STALL_MS / 1000);
    }
}

/* Publish so many messages, at most a window of them in flight, until all subscribers have them. */
static void run(uint64_t messages)
{
    struct conn *publisher = &conns[opt.subscribers];
    uint64_t end = published + messages;
    while (completed < end) {
        int queued = 0;
        for (; published < end && published - completed < opt.window; published++) {
            struct slot *slot = &ring[published % opt.window];
            slot->delivered = 0;
            opt.protocol->publish(publisher, slot);
            queued = 1;
        }
        if (queued)
            flush(publisher);
        if (!turn(STALL_MS))
            fail("nothing came for %d s: %" PRIu64 " published, %" PRIu64 " delivered to all", STALL_MS / 1000, published,
                 completed);
    }
}

/* Serve the connections (pings; surplus deliveries are errors) until a line, or the end, of stdin. */
static void wait_for_line(void)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    char c;
    ssize_t n;
    fflush(stdout);
    /* Watched only here: a closed stdin must not keep the measured loop awake. */
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, STDIN_FILENO, &event))
        fail("stdin must be a pipe or a terminal: %s", strerror(errno));
    do {
        stdin_ready = 0;
        while (!stdin_ready)
            turn(-1);
        n = read(STDIN_FILENO, &c, 1);
    } while (n == 1 && c != '\n');
    epoll_ctl(epoll_fd, EPOLL_CTL_DEL, STDIN_FILENO, NULL);
}

static void measure(void)
{
    run(opt.warmup);
    puts("ready");
    wait_for_line();
    uint64_t in = bytes_in, out = bytes_out;
    double wall = seconds(CLOCK_MONOTONIC), cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
    run(opt.messages);
    wall = seconds(CLOCK_MONOTONIC) - wall;
    cpu = seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    printf("{\"messages\": %" PRIu64 ", \"deliveries\": %" PRIu64 ", \"seconds\": %.6f, \"cpu_seconds\": %.6f, "
           "\"bytes_in\": %" PRIu64 ", \"bytes_out\": %" PRIu64 "}\n",
           opt.messages, opt.messages * opt.subscribers, wall, cpu, bytes_in - in, bytes_out - out);
    wait_for_line();
    turn(0);
}

static void hold(void)
{
    puts("ready");
    wait_for_line();
    turn(0);
    printf("{\"connections\": %u}\n", ready);
}

static void make_ring(void)
{
    ring = calloc(opt.window, sizeof *ring);
    for (unsigned i = 0; ring && i < opt.window; i++)
        if (!(ring[i].bytes = malloc(opt.size + 1000)))
            fail("out of memory");
    if (!ring)
        fail("out of memory");
}

/* ------------------------------------------------------------------- main */

static uint64_t number(const char *name, const char *text, uint64_t low, uint64_t high)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno || *end || end == text || *text == '-' || value < low || value > high)
        fail("--%s takes a number from %" PRIu64 " to %" PRIu64 ", not %s", name, low, high, text);
    return value;
}

static const struct protocol *protocol(const char *name)
{
    for (size_t i = 0; i < sizeof PROTOCOLS / sizeof *PROTOCOLS; i++)
        if (!strcmp(PROTOCOLS[i].name, name))
            return &PROTOCOLS[i];
    fail("--protocol takes streamr or nats, not %s", name);
}

static void parse_options(int argc, char **argv)
{
    static const struct option longs[] = {
        {"protocol", required_argument, NULL, 'p'}, {"port", required_argument, NULL, 'P'},
        {"subscribers", required_argument, NULL, 'n'}, {"window", required_argument, NULL, 'w'},
        {"size", required_argument, NULL, 's'}, {"warmup", required_argument, NULL, 'u'},
        {"messages", required_argument, NULL, 'm'}, {"idle", no_argument, NULL, 'i'},
        {NULL, 0, NULL, 0},
    };
    for (int o; (o = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
        switch (o) {
        case 'p': opt.protocol = protocol(optarg); break;
        case 'P': opt.port = (unsigned)number("port", optarg, 1, 65535); break;
        case 'n': opt.subscribers = (unsigned)number("subscribers", optarg, 1, 1000000); break;
        case 'w': opt.window = (unsigned)number("window", optarg, 1, 1000000); break;
        case 's': opt.size = (unsigned)number("size", optarg, MIN_SIZE, MAX_SIZE); break;
        case 'u': opt.warmup = number("warmup", optarg, 0, 1000000000); break;
        case 'm': opt.messages = number("messages", optarg, 1, 1000000000); break;
        case 'i': opt.idle = 1; break;
        default: exit(2);
        }
    }
    if (!opt.protocol || !opt.port || optind != argc)
        fail("usage: loadgen --protocol streamr|nats --port P [--subscribers N] [--window W] [--size BYTES] "
             "[--warmup N] [--messages N] [--idle]");
}

int main(int argc, char **argv)
{
    parse_options(argc, argv);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (epoll_fd < 0)
        fail("epoll_create1: %s", strerror(errno));
    make_ring();
    open_all();
    if (opt.idle)
        hold();
    else
        measure();
    return 0;
}

/*
 * copybroker: the floor. A broker that only copies WebSocket frames.
 *
 * One thread, one epoll. It upgrades, notes who subscribes, and writes what is
 * published to all of them: the message bytes are taken out of the request by
 * their position, framed once, joined with everything else read in the same turn,
 * and written with one send per subscriber. It parses, checks and stores nothing,
 * and knows one stream: what any server that does real work can only approach.
 *
 *   copybroker READY_FILE [LOG_FILE]    listens on a free port of 127.0.0.1 and writes
 *                                       {"ws": "ws://127.0.0.1:P", "pid": N} to READY_FILE
 *
 * With LOG_FILE each turn's frames are appended there and forced to disk before
 * they are sent: the floor of any server that delivers only what is durable. Then it
 * also acknowledges (publishAck=1 in the upgrade's path), after the sync, and answers
 * a resend of all or of the last N with sendfile(2): the frames as they lie in the file.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

#define SCRATCH (1u << 20)
#define EVENTS 256
#define MAX_CONNS 4096
#define LITERAL(s) (sizeof(s) - 1)

/* The answer to loadgen's fixed key (RFC 6455 section 1.3): no SHA-1 needed here. */
#define UPGRADED                                                                                                       \
    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"                                \
    "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
#define SUBSCRIBED "[2,2,\"r1\",\"bench\",0]"
#define RESENT "[2,5,\"r2\",\"bench\",0]"
#define BROADCAST_HEAD "[2,0,\"\","

struct buffer {
    char *bytes;
    size_t len, cap;
};

struct conn {
    int fd, upgraded, subscribed, acknowledge, resending;
    off_t resend_at;       /* next byte of the log to send while resending */
    struct buffer answers; /* acknowledgements to send after the sync */
    struct conn *next;     /* in the list of those with answers */
    struct buffer stash; /* the beginning of a frame whose end has not been read */
    struct buffer out;   /* what the socket has not taken yet */
};

static int epoll_fd, listener;
static struct conn *subscribers[MAX_CONNS];
static unsigned subscriber_count;
static struct buffer batch; /* the frames of this turn */
static struct conn *answering;
static int log_fd = -1;
static off_t log_size, *log_index; /* where each frame begins */
static size_t log_count, log_cap;
static char scratch[SCRATCH];

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void append(struct buffer *b, const void *bytes, size_t len)
{
    if (b->len + len > b->cap) {
        b->cap = 2 * (b->len + len);
        if (!(b->bytes = realloc(b->bytes, b->cap)))
            die("realloc");
    }
    memcpy(b->bytes + b->len, bytes, len);
    b->len += len;
}

static void watch(struct conn *c, int op)
{
    struct epoll_event event = {.events = EPOLLIN | (c->out.len || c->resending ? EPOLLOUT : 0), .data.ptr = c};
    if (epoll_ctl(epoll_fd, op, c->fd, &event))
        die("epoll_ctl");
}

/* As much as the socket takes; a broken connection is noticed by its reader. */
static size_t send_some(struct conn *c, const char *bytes, size_t len)
{
    ssize_t n = send(c->fd, bytes, len, MSG_NOSIGNAL | MSG_DONTWAIT);
    return n < 0 ? 0 : (size_t)n;
}

static void write_all(struct conn *c, const char *bytes, size_t len)
{
    size_t sent = c->out.len ? 0 : send_some(c, bytes, len);
    if (sent == len)
        return;
    int armed = c->out.len > 0;
    append(&c->out, bytes + sent, len - sent);
    if (!armed)
        watch(c, EPOLL_CTL_MOD);
}

static void write_more(struct conn *c)
{
    size_t sent = send_some(c, c->out.bytes, c->out.len);
    c->out.len -= sent;
    memmove(c->out.bytes, c->out.bytes + sent, c->out.len);
    if (!c->out.len)
        watch(c, EPOLL_CTL_MOD);
}

/* A server's text frame of so many bytes (RFC 6455 section 5.2). */
static void frame_head(struct buffer *b, size_t len)
{
    unsigned char head[10] = {0x81};
    size_t n = 2;
    if (len < 126) {
        head[1] = (unsigned char)len;
    } else {
        size_t wide = len < 65536 ? 2 : 8;
        head[1] = wide == 2 ? 126 : 127;
        for (size_t i = 0; i < wide; i++)
            head[n++] = (unsigned char)((uint64_t)len >> 8 * (wide - 1 - i));
    }
    append(b, head, n);
}

static void answer(struct conn *c, const char *text, size_t len)
{
    struct buffer framed = {0};
    frame_head(&framed, len);
    append(&framed, text, len);
    write_all(c, framed.bytes, framed.len);
    free(framed.bytes);
}

/* One entry of the index for the frame about to be appended to the batch. */
static void note_frame(void)
{
    if (log_fd < 0)
        return;
    if (log_count == log_cap) {
        log_cap = log_cap ? 2 * log_cap : 4096;
        if (!(log_index = realloc(log_index, log_cap * sizeof *log_index)))
            die("realloc");
    }
    log_index[log_count++] = log_size + (off_t)batch.len;
}

/* [2,100,"id","stored"], after the sync. */
static void will_acknowledge(struct conn *c, const char *id, size_t len)
{
    char text[100];
    if (!c->answers.len) {
        c->next = answering;
        answering = c;
    }
    len = (size_t)snprintf(text, sizeof text, "[2,100,\"%.*s\",\"stored\"]", (int)len, id);
    frame_head(&c->answers, len);
    append(&c->answers, text, len);
}

/* [2,11,"r2",stream,0,COUNT,null]: the last; [2,12,...: all. */
static void start_resend(struct conn *c, const char *text, size_t len)
{
    char copy[200] = "";
    size_t count = log_count;
    memcpy(copy, text, len < sizeof copy - 1 ? len : sizeof copy - 1);
    if (copy[4] == '1')
        sscanf(copy, "[2,11,\"r2\",\"bench\",0,%zu", &count);
    c->resend_at = count < log_count ? log_index[log_count - count] : 0;
    c->resending = 1;
    watch(c, EPOLL_CTL_MOD);
}

static void resend_more(struct conn *c)
{
    while (c->resend_at < log_size) {
        ssize_t n = sendfile(c->fd, log_fd, &c->resend_at, (size_t)(log_size - c->resend_at));
        if (n < 0 && errno == EAGAIN)
            return;
        if (n <= 0)
            break;
    }
    c->resending = 0;
    watch(c, EPOLL_CTL_MOD);
    answer(c, RESENT, LITERAL(RESENT));
}

static void request(struct conn *c, const char *text, size_t len)
{
    if (len > 5 && !memcmp(text, "[2,9,", 5) && subscriber_count < MAX_CONNS) {
        answer(c, SUBSCRIBED, LITERAL(SUBSCRIBED));
        c->subscribed = 1;
        subscribers[subscriber_count++] = c;
    } else if (len > 20 && !memcmp(text, "[2,8,\"", 6)) {
        /* [2,8,"id",MESSAGE,null] becomes [2,0,"",MESSAGE] */
        const char *quote = memchr(text + 6, '"', len - 6);
        if (!quote || quote + 2 + 6 > text + len)
            return;
        size_t size = (size_t)(text + len - 6 - (quote + 2));
        note_frame();
        if (c->acknowledge)
            will_acknowledge(c, text + 6, (size_t)(quote - text - 6));
        frame_head(&batch, LITERAL(BROADCAST_HEAD) + size + 1);
        append(&batch, BROADCAST_HEAD, LITERAL(BROADCAST_HEAD));
        append(&batch, quote + 2, size);
        append(&batch, "]", 1);
    } else if (log_fd >= 0 && len > 20 && !memcmp(text, "[2,1", 4)) {
        start_resend(c, text, len);
    }
}

static void unmask(unsigned char *p, size_t len, const unsigned char *key)
{
    uint32_t mask;
    memcpy(&mask, key, 4);
    const uint64_t wide = (uint64_t)mask << 32 | mask;
    size_t i = 0;
    for (; i + 8 <= len; i += 8) {
        uint64_t word;
        memcpy(&word, p + i, 8);
        word ^= wide;
        memcpy(p + i, &word, 8);
    }
    for (; i < len; i++)
        p[i] ^= key[i & 3];
}

/* Whole frames of a client: masked, up to a 16-bit length. Returns the bytes used. */
static size_t consume(struct conn *c, unsigned char *p, size_t len)
{
    size_t used = 0;
    if (!c->upgraded) {
        unsigned char *end = memmem(p, len, "\r\n\r\n", 4);
        if (!end)
            return 0;
        used = (size_t)(end - p) + 4;
        c->upgraded = 1;
        c->acknowledge = log_fd >= 0 && memmem(p, used, "publishAck=1", 12);
        write_all(c, UPGRADED, LITERAL(UPGRADED));
    }
    while (len - used >= 8) {
        unsigned char *f = p + used;
        size_t size = f[1] & 0x7f, head = 6;
        if (size == 126) {
            size = (size_t)f[2] << 8 | f[3];
            head = 8;
        }
        if (len - used < head + size)
            break;
        unmask(f + head, size, f + head - 4);
        if ((f[0] & 0x0f) == 1)
            request(c, (char *)f + head, size);
        used += head + size;
    }
    return used;
}

static void forget(struct conn *c)
{
    for (unsigned i = 0; c->subscribed && i < subscriber_count; i++)
        if (subscribers[i] == c)
            subscribers[i--] = subscribers[--subscriber_count];
    for (struct conn **at = &answering; *at; at = &(*at)->next)
        if (*at == c) {
            *at = c->next;
            break;
        }
    close(c->fd);
    free(c->answers.bytes);
    free(c->stash.bytes);
    free(c->out.bytes);
    free(c);
}

static void read_conn(struct conn *c)
{
    size_t have = c->stash.len;
    ssize_t n = recv(c->fd, scratch + have, SCRATCH - have, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        forget(c);
        return;
    }
    if (have)
        memcpy(scratch, c->stash.bytes, have);
    size_t len = have + (size_t)n;
    size_t used = consume(c, (unsigned char *)scratch, len);
    c->stash.len = 0;
    if (used < len)
        append(&c->stash, scratch + used, len - used);
}

static void accept_conn(void)
{
    int one = 1;
    struct conn *c = calloc(1, sizeof *c);
    if (!c)
        die("calloc");
    if ((c->fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) < 0)
        die("accept");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    watch(c, EPOLL_CTL_ADD);
}

static void listen_and_tell(const char *ready_file)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    char draft[4096];
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, size) || listen(listener, 1024) ||
        getsockname(listener, (struct sockaddr *)&address, &size))
        die("listen");
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listener, &event))
        die("epoll_ctl");
    /* Renamed when whole: a reader never sees half of it. */
    snprintf(draft, sizeof draft, "%s.draft", ready_file);
    FILE *f = fopen(draft, "w");
    if (!f || fprintf(f, "{\"ws\": \"ws://127.0.0.1:%u\", \"pid\": %d}\n", ntohs(address.sin_port), (int)getpid()) < 0 ||
        fclose(f) || rename(draft, ready_file))
        die(ready_file);
}

static void commit(void)
{
    if (write(log_fd, batch.bytes, batch.len) != (ssize_t)batch.len || fdatasync(log_fd))
        die("log");
    log_size += (off_t)batch.len;
}

/* Keep, acknowledge and send what this turn has read. */
static void end_turn(void)
{
    if (batch.len && log_fd >= 0)
        commit();
    for (; answering; answering = answering->next) {
        write_all(answering, answering->answers.bytes, answering->answers.len);
        answering->answers.len = 0;
    }
    for (unsigned i = 0; batch.len && i < subscriber_count; i++)
        write_all(subscribers[i], batch.bytes, batch.len);
    batch.len = 0;
}

int main(int argc, char **argv)
{
    struct epoll_event events[EVENTS];
    if (argc != 2 && argc != 3) {
        fputs("usage: copybroker READY_FILE [LOG_FILE]\n", stderr);
        return 2;
    }
    if (argc == 3 && (log_fd = open(argv[2], O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) < 0)
        die(argv[2]);
    if ((epoll_fd = epoll_create1(EPOLL_CLOEXEC)) < 0)
        die("epoll_create1");
    listen_and_tell(argv[1]);
    for (;;) {
        int n = epoll_wait(epoll_fd, events, EVENTS, -1);
        for (int i = 0; i < n; i++) {
            struct conn *c = events[i].data.ptr;
            if (!c) {
                accept_conn();
                continue;
            }
            if (events[i].events & EPOLLOUT && c->out.len)
                write_more(c);
            else if (events[i].events & EPOLLOUT && c->resending)
                resend_more(c);
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
                read_conn(c);
        }
        end_turn();
    }
}

/* Connections, buffers and the loop of loadgen. */
#include "loadgen.h"
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define EVENTS 256

unsigned opened, ready;
uint64_t bytes_in, bytes_out;
int stdin_ready;
static int epoll_fd;
static char scratch[SCRATCH];

void fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("loadgen: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

int shown(size_t len)
{
    return (int)(len > 1000 ? 1000 : len);
}

double seconds(clockid_t clock)
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

void append(struct buffer *b, const void *bytes, size_t len)
{
    reserve(b, b->len + len);
    memcpy(b->bytes + b->len, bytes, len);
    b->len += len;
}

const char *role(const struct conn *c)
{
    return c->publisher ? "publisher" : "subscriber";
}

static void watch(struct conn *c, int op)
{
    struct epoll_event event = {.events = EPOLLIN | (c->wants_out ? EPOLLOUT : 0), .data.ptr = c};
    if (epoll_ctl(epoll_fd, op, c->fd, &event))
        fail("epoll_ctl: %s", strerror(errno));
}

void flush(struct conn *c)
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

void say(struct conn *c, const char *format, ...)
{
    char text[2000];
    va_list args;
    va_start(args, format);
    int len = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (len < 0 || (size_t)len >= sizeof text)
        fail("a request of %d bytes", len);
    append(&c->out, text, (size_t)len);
    flush(c);
}

void open_loop(void)
{
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (epoll_fd < 0)
        fail("epoll_create1: %s", strerror(errno));
}

void open_conn(struct conn *c, int publisher, unsigned index)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET,
        .sin_port = htons((uint16_t)opt.port),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
    };
    int one = 1;
    c->publisher = publisher;
    c->index = index;
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

void became_ready(struct conn *c)
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
int turn(int timeout_ms)
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

/* Watched only while waiting for a line: a closed stdin must not keep the measured loop awake. */
void watch_stdin(int on)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    if (epoll_ctl(epoll_fd, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, STDIN_FILENO, &event) && on)
        fail("stdin must be a pipe or a terminal: %s", strerror(errno));
}

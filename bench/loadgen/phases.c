/*
 * The workloads of loadgen, and what must hold in each.
 *
 * Fan-out keeps W messages in flight: one leaves the window when the slowest subscriber has it. Every delivery is
 * compared, byte by byte, with the message that subscriber must get next, so a lost, repeated, reordered or altered
 * message ends the run with an error and never becomes a figure. Ingest keeps W messages unacknowledged and takes
 * acknowledgements in order only. Latency first finds the pair's capacity, then sends at half of it by the clock; a
 * message's time counts from when it was to be sent, so that a stall is charged to every message it delays. Resend
 * counts what comes back and looks at its order.
 *
 * The borders of the measured phase are lines, so that the server's CPU can be read there:
 *
 *   stdout "ready"   everybody is subscribed and the warm-up is done
 *   stdin  newline   go
 *   stdout {...}     what was measured
 *   stdin  newline   end (exit 0, unless something came that nobody sent)
 *
 * Idle has no measured phase: "ready" says that the connections stand; they are held until the next newline.
 */
#include "loadgen.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_OPENING 32u        /* connections in their handshake at once: below any listen backlog */
#define PACED_SLOTS 16384u     /* messages that may be under way when the clock sends */
#define SUB_BUCKETS 64u        /* per power of two: latencies are exact to 1.6 % */
#define BUCKETS (40 * SUB_BUCKETS)

uint64_t published;
static uint64_t completed; /* delivered to all, or acknowledged */
static struct conn *conns; /* the publisher, then the subscribers */
static struct slot *ring;  /* message i lives in ring[i % slots] */
static unsigned slots;
static uint64_t resent_count;
static int resend_done;

/* -------------------------------------------------------------- latencies */

struct histogram {
    uint64_t counts[BUCKETS], total;
    double greatest;
};

static struct histogram latencies, lateness;
static int recording;

static unsigned bucket(uint64_t ns)
{
    unsigned shift = 0;
    while (ns >> shift >= 2 * SUB_BUCKETS)
        shift++;
    unsigned b = shift * SUB_BUCKETS + (unsigned)(ns >> shift);
    return b < BUCKETS ? b : BUCKETS - 1;
}

static void record(struct histogram *h, double secs)
{
    secs = secs < 0 ? 0 : secs;
    h->counts[bucket((uint64_t)(secs * 1e9))]++;
    h->total++;
    if (secs > h->greatest)
        h->greatest = secs;
}

static double quantile_us(const struct histogram *h, double q)
{
    uint64_t wanted = (uint64_t)((double)h->total * q), seen = 0;
    for (unsigned b = 0; b < BUCKETS; b++)
        if ((seen += h->counts[b]) > wanted) {
            unsigned shift = b < 2 * SUB_BUCKETS ? 0 : b / SUB_BUCKETS - 1;
            return (double)((uint64_t)(b - shift * SUB_BUCKETS) << shift) / 1e3;
        }
    return h->greatest * 1e6;
}

/* ----------------------------------------------------- what protocols tell */

static struct slot *expected(struct conn *c)
{
    if (c->received >= published)
        fail("a subscriber got a message more than was published (%" PRIu64 ")", published);
    return &ring[c->received % slots];
}

static void wrong(const struct conn *c, const struct slot *slot, const char *bytes, size_t len)
{
    fail("delivery %" PRIu64 " is not the message published as such:\n  expected %.*s\n  got      %.*s", c->received,
         shown(slot->len), slot->bytes, shown(len), bytes);
}

static void took(struct conn *c, struct slot *slot)
{
    c->received++;
    if (recording)
        record(&latencies, seconds(CLOCK_MONOTONIC) - slot->due);
    /* Each subscriber goes through the slots in order, so slots complete in order. */
    if (++slot->delivered == opt.subscribers)
        completed++;
}

void delivered(struct conn *c, const char *bytes, size_t len)
{
    struct slot *slot = expected(c);
    if (len != slot->len || memcmp(bytes, slot->bytes, len))
        wrong(c, slot, bytes, len);
    took(c, slot);
}

/* Where the content begins: no envelope has a brace before it. */
static const char *content_within(const char *bytes, size_t len)
{
    return memchr(bytes, '{', len);
}

/* Another version's envelope around the same content. */
void delivered_content(struct conn *c, const char *bytes, size_t len)
{
    struct slot *slot = expected(c);
    const char *mine = content_within(slot->bytes, slot->len), *theirs = content_within(bytes, len);
    const char *end = mine ? memchr(mine, '}', slot->len - (size_t)(mine - slot->bytes)) : NULL;
    size_t size = end ? (size_t)(end - mine) + 1 : 0;
    if (!size || !theirs || (size_t)(bytes + len - theirs) < size || memcmp(mine, theirs, size))
        wrong(c, slot, bytes, len);
    took(c, slot);
}

void acknowledged(void)
{
    if (completed >= published)
        fail("an acknowledgement more than was published (%" PRIu64 ")", published);
    completed++;
}

void resent(const char *bytes, size_t len)
{
    const char *colon = memchr(bytes, ':', len); /* {"n":1000000007, and no envelope has a colon before it */
    uint64_t wanted = FIRST_NUMBER + opt.total - opt.count + resent_count;
    if (!colon || (size_t)(bytes + len - colon) < 11 || strtoull(colon + 1, NULL, 10) != wanted)
        fail("message %" PRIu64 " of the resend is not number %" PRIu64 ": %.*s", resent_count, wanted, shown(len),
             bytes);
    resent_count++;
}

void resend_ended(void)
{
    if (resent_count != opt.count)
        fail("a resend of %" PRIu64 " messages ended after %" PRIu64, opt.count, resent_count);
    resend_done = 1;
}

uint64_t next_number(void)
{
    return FIRST_NUMBER + opt.first + published;
}

/* {"n":1000000007,"x":"aaaa..."} of opt.size bytes; quote is \" where it stands inside a JSON string. */
size_t content(char *to, const char *quote)
{
    int head = sprintf(to, "{%sn%s:%" PRIu64 ",%sx%s:%s", quote, quote, next_number(), quote, quote, quote);
    size_t escapes = 6 * (strlen(quote) - 1);
    size_t fill = opt.size + escapes - (size_t)head - strlen(quote) - 1;
    memset(to + head, 'a', fill);
    return (size_t)head + fill + (size_t)sprintf(to + head + fill, "%s}", quote);
}

/* ---------------------------------------------- messages made beforehand  */

static const char *lines, *lines_end;

static void open_file(void)
{
    struct stat info;
    int fd = open(opt.file, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &info) || info.st_size == 0)
        fail("%s cannot be read, or is empty", opt.file);
    lines = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
    if (lines == MAP_FAILED)
        fail("mmap: %s", strerror(errno));
    lines_end = lines + info.st_size;
    close(fd);
}

const char *prepared(size_t *len)
{
    if (!lines)
        return NULL;
    const char *line = lines, *end = memchr(lines, '\n', (size_t)(lines_end - lines));
    if (!end)
        fail("%s has fewer messages than are to be published", opt.file);
    *len = (size_t)(end - line);
    if (*len > opt.size + ENVELOPE)
        fail("a message of %zu bytes in %s", *len, opt.file);
    lines = end + 1;
    return line;
}

/* ----------------------------------------------------------------- phases */

static void open_all(void)
{
    unsigned total = opt.subscribers + 1;
    conns = calloc(total, sizeof *conns);
    if (!conns)
        fail("out of memory");
    while (ready < total) {
        /* The publisher alone first: it makes what subscribers need. */
        while (opened < total && opened - ready < MAX_OPENING && (opened == 0 || ready > 0))
            open_conn(&conns[opened], opened == 0, opened == 0 ? 0 : opened - 1);
        if (!turn(STALL_MS))
            fail("%u of %u connections are open after %d s of silence", ready, total, STALL_MS / 1000);
    }
}

static void publish_next(double due)
{
    struct slot *slot = &ring[published % slots];
    slot->delivered = 0;
    slot->due = due;
    opt.protocol->publish(&conns[0], slot);
    published++;
}

static void turn_or_stall(void)
{
    if (!turn(STALL_MS))
        fail("nothing came for %d s: %" PRIu64 " published, %" PRIu64 " done", STALL_MS / 1000, published, completed);
}

/* So many messages, or for so long; at most a window of them under way. Returns when all are done. */
static void run_window(uint64_t messages, double secs)
{
    uint64_t end = published + messages;
    double until = secs > 0 ? seconds(CLOCK_MONOTONIC) + secs : 0;
    while (completed < end) {
        uint64_t before = published;
        if (until > 0 && seconds(CLOCK_MONOTONIC) >= until)
            end = published;
        while (published < end && published - completed < opt.window)
            publish_next(0);
        if (published != before)
            flush(&conns[0]);
        if (completed < end)
            turn_or_stall();
    }
}

/* By the clock. The loop never sleeps: it has a core, and a late generator would look like a slow server. */
static void run_paced(double rate, double secs)
{
    uint64_t first = published, count = (uint64_t)(rate * secs) + 1, end = first + count;
    double start = seconds(CLOCK_MONOTONIC), heard = start;
    while (completed < end) {
        double now = seconds(CLOCK_MONOTONIC);
        uint64_t before = published, due = (uint64_t)((now - start) * rate) + 1;
        due = first + (due < count ? due : count);
        while (published < due && published - completed < slots) {
            double planned = start + (double)(published - first) / rate;
            record(&lateness, now - planned);
            publish_next(planned);
        }
        if (published != before)
            flush(&conns[0]);
        if (turn(0))
            heard = now;
        else if (now - heard > STALL_MS / 1e3 && published > completed)
            turn_or_stall();
    }
}

/* Serve the connections (pings; surplus deliveries are errors) until a line, or the end, of stdin. */
static void wait_for_line(void)
{
    char c;
    ssize_t n;
    fflush(stdout);
    watch_stdin(1);
    do {
        stdin_ready = 0;
        while (!stdin_ready)
            turn(-1);
        n = read(STDIN_FILENO, &c, 1);
    } while (n == 1 && c != '\n');
    watch_stdin(0);
}

struct meter {
    uint64_t in, out, published;
    double wall, cpu;
};

static struct meter read_meter(void)
{
    return (struct meter){bytes_in, bytes_out, published, seconds(CLOCK_MONOTONIC),
                          seconds(CLOCK_PROCESS_CPUTIME_ID)};
}

/* Each workload prints an object; this is the part they have in common. */
static void tell(const struct meter *from, uint64_t messages, uint64_t deliveries)
{
    struct meter now = read_meter();
    printf("{\"messages\": %" PRIu64 ", \"deliveries\": %" PRIu64 ", \"seconds\": %.6f, \"cpu_seconds\": %.6f, "
           "\"bytes_in\": %" PRIu64 ", \"bytes_out\": %" PRIu64 ", \"published\": %" PRIu64,
           messages, deliveries, now.wall - from->wall, now.cpu - from->cpu, now.in - from->in, now.out - from->out,
           published);
}

/* At most a quarter of the measured time: with slow servers and many subscribers a message is a long time. */
static void warm_up(void)
{
    run_window(opt.warmup, opt.seconds / 4);
}

static void measure_window(void)
{
    warm_up();
    puts("ready");
    wait_for_line();
    struct meter from = read_meter();
    run_window(opt.seconds > 0 ? UINT64_MAX / 2 : opt.messages, opt.seconds);
    uint64_t messages = published - from.published;
    tell(&from, messages, opt.mode == INGEST ? messages : messages * opt.subscribers);
}

static void measure_latency(void)
{
    warm_up();
    puts("ready");
    wait_for_line();
    struct meter from = read_meter();
    run_window(UINT64_MAX / 2, opt.seconds / 3);
    double capacity = (double)(published - from.published) / (seconds(CLOCK_MONOTONIC) - from.wall);
    from = read_meter();
    recording = 1;
    run_paced(capacity / 2, opt.seconds);
    uint64_t messages = published - from.published;
    tell(&from, messages, messages * opt.subscribers);
    printf(", \"capacity\": %.1f, \"rate\": %.1f, \"p50_us\": %.1f, \"p99_us\": %.1f, \"max_us\": %.1f, "
           "\"late_p99_us\": %.1f",
           capacity, capacity / 2, quantile_us(&latencies, 0.5), quantile_us(&latencies, 0.99), latencies.greatest * 1e6,
           quantile_us(&lateness, 0.99));
}

static void resend_once(void)
{
    resent_count = 0;
    resend_done = 0;
    opt.protocol->resend(&conns[0]);
    while (!resend_done)
        turn_or_stall();
}

static void measure_resend(void)
{
    for (uint64_t i = 0; i < opt.warmup; i++)
        resend_once();
    puts("ready");
    wait_for_line();
    struct meter from = read_meter();
    for (unsigned i = 0; i < opt.times; i++)
        resend_once();
    tell(&from, opt.count * opt.times, opt.count * opt.times);
}

static void hold(void)
{
    puts("ready");
    wait_for_line();
    turn(0);
    printf("{\"connections\": %u", ready);
}

static void make_ring(void)
{
    slots = opt.mode == LATENCY && opt.window < PACED_SLOTS ? PACED_SLOTS : opt.window;
    ring = calloc(slots, sizeof *ring);
    for (unsigned i = 0; ring && i < slots; i++)
        if (!(ring[i].bytes = malloc(opt.size + ENVELOPE)))
            fail("out of memory");
    if (!ring)
        fail("out of memory");
}

void run_workload(void)
{
    static void (*const measure[])(void) = {measure_window, measure_window, measure_latency, measure_resend, hold};
    if (opt.file)
        open_file();
    open_loop();
    make_ring();
    open_all();
    measure[opt.mode]();
    puts("}");
    wait_for_line();
    turn(0);
}

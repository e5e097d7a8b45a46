/* Options of loadgen; phases.c says what it does with them. */
#include "loadgen.h"
#include <getopt.h>

struct options opt = {
    .subscribers = 100, .window = 64, .size = 300, .versions = 1, .times = 1, .warmup = 2000, .messages = 20000};

static const struct protocol *const PROTOCOLS[] = {&STREAMR, &NATS, &JETSTREAM, &REDIS, &REDIS_STREAMS, &MQTT};
static const char *const MODES[] = {"fanout", "ingest", "latency", "resend", "idle"};
#define COUNT(a) (sizeof(a) / sizeof *(a))

static uint64_t number(const char *name, const char *text, uint64_t low, uint64_t high)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno || *end || end == text || *text == '-' || value < low || value > high)
        fail("--%s takes a number from %" PRIu64 " to %" PRIu64 ", not %s", name, low, high, text);
    return value;
}

static double decimal(const char *name, const char *text)
{
    char *end;
    double value = strtod(text, &end);
    if (*end || end == text || !(value > 0 && value < 1e6))
        fail("--%s takes seconds above 0, not %s", name, text);
    return value;
}

static const struct protocol *protocol(const char *name)
{
    for (size_t i = 0; i < COUNT(PROTOCOLS); i++)
        if (!strcmp(PROTOCOLS[i]->name, name))
            return PROTOCOLS[i];
    fail("--protocol takes streamr, nats, jetstream, redis, redis-streams or mqtt, not %s", name);
}

static enum mode mode(const char *name)
{
    for (size_t i = 0; i < COUNT(MODES); i++)
        if (!strcmp(MODES[i], name))
            return (enum mode)i;
    fail("--mode takes fanout, ingest, latency, resend or idle, not %s", name);
}

static void parse_options(int argc, char **argv)
{
    static const struct option longs[] = {
        {"protocol", required_argument, NULL, 'p'}, {"port", required_argument, NULL, 'P'},
        {"mode", required_argument, NULL, 'M'},     {"subscribers", required_argument, NULL, 'n'},
        {"window", required_argument, NULL, 'w'},   {"size", required_argument, NULL, 's'},
        {"warmup", required_argument, NULL, 'u'},   {"messages", required_argument, NULL, 'm'},
        {"seconds", required_argument, NULL, 'S'},  {"versions", required_argument, NULL, 'v'},
        {"first", required_argument, NULL, 'f'},    {"file", required_argument, NULL, 'F'},
        {"count", required_argument, NULL, 'c'},    {"total", required_argument, NULL, 't'},
        {"times", required_argument, NULL, 'T'},    {NULL, 0, NULL, 0},
    };
    for (int o; (o = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
        switch (o) {
        case 'p': opt.protocol = protocol(optarg); break;
        case 'P': opt.port = (unsigned)number("port", optarg, 1, 65535); break;
        case 'M': opt.mode = mode(optarg); break;
        case 'n': opt.subscribers = (unsigned)number("subscribers", optarg, 1, 1000000); break;
        case 'w': opt.window = (unsigned)number("window", optarg, 1, 1000000); break;
        case 's': opt.size = (unsigned)number("size", optarg, MIN_SIZE, MAX_SIZE); break;
        case 'u': opt.warmup = number("warmup", optarg, 0, 1000000000); break;
        case 'm': opt.messages = number("messages", optarg, 1, 1000000000); break;
        case 'S': opt.seconds = decimal("seconds", optarg); break;
        case 'v': opt.versions = (unsigned)number("versions", optarg, 1, 3); break;
        case 'f': opt.first = number("first", optarg, 0, 1000000000); break;
        case 'F': opt.file = optarg; break;
        case 'c': opt.count = number("count", optarg, 1, 1000000000); break;
        case 't': opt.total = number("total", optarg, 1, 1000000000); break;
        case 'T': opt.times = (unsigned)number("times", optarg, 1, 1000000); break;
        default: exit(2);
        }
    }
    if (!opt.protocol || !opt.port || optind != argc)
        fail("usage: loadgen --protocol NAME --port P [--mode NAME] [--subscribers N] [--window W] [--size BYTES] "
             "[--warmup N] [--messages N | --seconds S] [--versions 1-3] [--first N] [--file F] "
             "[--count N --total N --times N]");
    if (opt.mode == INGEST || opt.mode == RESEND)
        opt.subscribers = 0;
    if (opt.mode == LATENCY && !(opt.seconds > 0))
        fail("--mode latency needs --seconds");
    if (opt.mode == RESEND && (!opt.count || opt.count > opt.total))
        fail("--mode resend needs --count, and a --total of at least as many");
    if ((opt.mode == RESEND || opt.mode == INGEST) && !opt.protocol->resend)
        fail("%s keeps nothing: it can neither acknowledge nor resend", opt.protocol->name);
    if (opt.file && opt.protocol != &STREAMR)
        fail("--file holds messages of the protocol streamr");
}

int main(int argc, char **argv)
{
    parse_options(argc, argv);
    run_workload();
    return 0;
}

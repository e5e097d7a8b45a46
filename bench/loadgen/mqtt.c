/* MQTT 3.1.1 (OASIS, sections 2 and 3) with QoS 0: mosquitto. */
#include "loadgen.h"

#define TOPIC "bench"
#define CONNECT 0x10u
#define CONNACK 0x20u
#define PUBLISH 0x30u
#define SUBSCRIBE 0x82u
#define SUBACK 0x90u
#define PINGRESP 0xd0u

/* Section 2.2.3: seven bits a byte, the lowest first. */
static size_t put_length(unsigned char *to, size_t len)
{
    size_t n = 0;
    do {
        to[n] = (unsigned char)(len & 0x7f);
        len >>= 7;
        to[n++] |= len ? 0x80 : 0;
    } while (len);
    return n;
}

static void greet(struct conn *c)
{
    unsigned char id[24];
    int size = sprintf((char *)id, "%s%u", c->publisher ? "p" : "s", c->index);
    /* name, level 4, clean session, no keep-alive, client id */
    unsigned char head[] = {CONNECT, (unsigned char)(12 + size), 0, 4, 'M', 'Q', 'T', 'T', 4, 2, 0, 0, 0, (unsigned char)size};
    append(&c->out, head, sizeof head);
    append(&c->out, id, (size_t)size);
    flush(c);
}

static void subscribe(struct conn *c)
{
    static const unsigned char packet[] = {SUBSCRIBE, 10, 0, 1, 0, 5, 'b', 'e', 'n', 'c', 'h', 0};
    c->state = SUBSCRIBING;
    append(&c->out, packet, sizeof packet);
    flush(c);
}

static void packet(struct conn *c, unsigned type, const char *body, size_t len)
{
    const size_t head = 2 + LITERAL(TOPIC);
    if (type == PUBLISH && c->state == READY && !c->publisher && len > head && !memcmp(body + 2, TOPIC, LITERAL(TOPIC)))
        delivered(c, body + head, len - head);
    else if (type == CONNACK && len == 2 && body[1] == 0 && c->state == OPENING)
        c->publisher ? became_ready(c) : subscribe(c);
    else if (type == SUBACK && len == 3 && body[2] == 0 && c->state == SUBSCRIBING)
        became_ready(c);
    else if (type != PINGRESP)
        fail("the %s did not expect a packet of type %02x and %zu bytes", role(c), type, len);
}

static size_t consume(struct conn *c, char *bytes, size_t len)
{
    size_t used = 0;
    while (len - used >= 2) {
        const unsigned char *p = (const unsigned char *)bytes + used;
        size_t size = 0, n = 1;
        for (unsigned shift = 0;; shift += 7) {
            if (n > 4)
                fail("a packet's length of more than four bytes");
            if (used + n >= len)
                return used;
            size |= (size_t)(p[n] & 0x7f) << shift;
            if (!(p[n++] & 0x80))
                break;
        }
        if (size > SCRATCH - 5)
            fail("a packet of %zu bytes", size);
        if (len - used < n + size)
            break;
        packet(c, p[0], bytes + used + n, size);
        used += n + size;
    }
    return used;
}

static void publish(struct conn *c, struct slot *slot)
{
    unsigned char head[12] = {PUBLISH};
    slot->len = content(slot->bytes, "\"");
    size_t n = 1 + put_length(head + 1, 2 + LITERAL(TOPIC) + slot->len);
    head[n++] = 0;
    head[n++] = LITERAL(TOPIC);
    append(&c->out, head, n);
    append(&c->out, TOPIC, LITERAL(TOPIC));
    append(&c->out, slot->bytes, slot->len);
}

const struct protocol MQTT = {"mqtt", greet, consume, publish, NULL};

/* The machines of a DHCP benchmark, as a relay passes their packets on: DISCOVER, OFFER, REQUEST, ACK.
 *
 *   dhcp SERVER RELAY FIRST COUNT MODE VALUE SECONDS
 *
 * Each packet is what EDK2's PXE client sends, with RELAY in giaddr; so answers come unicast to port 67 of RELAY. The
 * machines numbered from FIRST on have the MAC and the address that tests.bench.bed and tests.bench.ours give them; they
 * take their turns in a random order. MODE is
 *
 *   closed  VALUE of them wait for an answer at any time: how much the server can do
 *   once    the same, until each had one turn
 *   open    exchanges begin VALUE times a second, at random moments, whatever the server does: how long it takes then
 *
 * Every answer is checked: type, transaction, hardware address, address, server, and that there is a boot file. A packet
 * without an answer is sent again after half a second. The latency of an answer is from just before the packet is handed
 * to the kernel until the kernel has got the answer, so that a generator that waits for its turn changes nothing.
 *
 * Prints JSON: exchanges, seconds, busy (share of a core that this program took), resent, p50_us, p99_us, max_us.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { BATCH = 64, PACKET = 512, DHCP_PORT = 67, NUMBER_BITS = 20, OPTIONS = 240 };
enum { DISCOVER = 1, OFFER = 2, REQUEST = 3, ACK = 5 };
enum phase { IDLE, WANTS_OFFER, WANTS_ACK };

static const int64_t SECOND = 1000000000, SEND_AGAIN = 500000000;

struct machine {
    int64_t sent;        /* when its packet was sent last, nanoseconds */
    int32_t place;       /* in `waiting` */
    uint16_t turn;       /* tells the answers of this exchange from late ones of an earlier */
    uint8_t phase;
};

static struct in_addr server, relay;
static int sock, first, count;
static struct machine *machines;
static int32_t *order, *waiting;
static int waits;
static int64_t turns;
static long exchanges, resent;

static uint32_t *latencies; /* tenths of a microsecond */
static size_t latencies_used, latencies_room;

static uint8_t discover[PACKET], request[PACKET];
static size_t discover_size, request_size;

static uint8_t out[BATCH][PACKET];
static struct iovec out_parts[BATCH];
static struct mmsghdr out_messages[BATCH];
static int32_t out_machines[BATCH];
static int outs;

static void fail(const char *what, int machine, const uint8_t *packet, ssize_t size) {
    fprintf(stderr, "DHCP: machine %d: %s: ", machine, what);
    for (ssize_t i = 0; i < size; i++) fprintf(stderr, "%02x", packet[i]);
    fprintf(stderr, "\n");
    exit(1);
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t); /* the clock of the kernel's timestamps */
    return t.tv_sec * SECOND + t.tv_nsec;
}

static uint64_t random_state = 88172645463325252u; /* xorshift64: every run has the same load */

static uint64_t random_bits(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* --- the packets -------------------------------------------------------------------------------------------------- */

static uint32_t address_of(int number) { /* bed.machine_ip */
    return 10u << 24 | (uint32_t)(67 + number / 50000) << 16 | (uint32_t)(number / 200 % 250) << 8
        | (uint32_t)(2 + number % 200);
}

static void number_into(uint8_t *at, uint32_t number) {
    uint32_t wire = htonl(number);
    memcpy(at, &wire, 4);
}

static size_t build(uint8_t *packet, uint8_t type) {
    static const uint8_t asked[] = {57, 2, 0x05, 0xc0,
        55, 35, 1, 2, 3, 4, 5, 6, 12, 13, 15, 17, 18, 22, 23, 28, 40, 41, 42, 43, 50, 51, 54, 58, 59, 60, 66, 67, 97,
        128, 129, 130, 131, 132, 133, 134, 135};
    static const char class[] = "PXEClient:Arch:00007:UNDI:003016";
    uint8_t *end = packet + OPTIONS;
    packet[0] = packet[1] = 1; /* BOOTREQUEST, Ethernet */
    packet[2] = 6;
    packet[3] = 1; /* one hop: the relay */
    memcpy(packet + 24, &relay, 4);
    memcpy(packet + 28, "\x52\x54", 2);
    memcpy(packet + 236, "\x63\x82\x53\x63", 4);
    *end++ = 53, *end++ = 1, *end++ = type;
    *end++ = 97, *end++ = 17, *end++ = 0; /* the GUID, whose last bytes are the machine's number */
    end += 16;
    if (type == REQUEST) {
        *end++ = 54, *end++ = 4;
        memcpy(end, &server, 4), end += 4;
        *end++ = 50, *end++ = 4, end += 4;
    }
    memcpy(end, asked, sizeof asked), end += sizeof asked;
    memcpy(end, "\x5e\x03\x01\x03\x10\x5d\x02\x00\x07", 9), end += 9; /* UNDI 3.16; x86-64 UEFI */
    *end++ = 60, *end++ = sizeof class - 1;
    memcpy(end, class, sizeof class - 1), end += sizeof class - 1;
    *end++ = 255;
    return end - packet;
}

static void flush(void);

static void post(int32_t machine) {
    struct machine *m = &machines[machine];
    int number = first + machine;
    uint8_t *packet = out[outs];
    bool asks = m->phase == WANTS_ACK;
    memcpy(packet, asks ? request : discover, asks ? request_size : discover_size);
    out_parts[outs].iov_len = asks ? request_size : discover_size;
    number_into(packet + 4, (uint32_t)m->turn << NUMBER_BITS | (uint32_t)machine);
    packet[30] = 0, packet[31] = number >> 16, packet[32] = number >> 8, packet[33] = number;
    number_into(packet + OPTIONS + 3 + 15, number);
    if (asks) number_into(packet + OPTIONS + 3 + 19 + 6 + 2, address_of(number));
    out_machines[outs++] = machine;
    if (outs == BATCH) flush();
}

static void flush(void) {
    for (int done = 0; done < outs;) {
        int64_t moment = now();
        for (int i = done; i < outs; i++) machines[out_machines[i]].sent = moment;
        int sent = sendmmsg(sock, out_messages + done, outs - done, 0);
        if (sent > 0) done += sent;
        else if (errno != EINTR && errno != ENOBUFS && errno != ECONNREFUSED) die("sendmmsg");
    }
    outs = 0;
}

static const uint8_t *option(const uint8_t *packet, ssize_t size, uint8_t wanted, uint8_t least) {
    for (ssize_t at = OPTIONS; at + 1 < size && packet[at] != 255;) {
        if (packet[at] == 0) { at++; continue; }
        if (at + 2 + packet[at + 1] > size) return NULL;
        if (packet[at] == wanted) return packet[at + 1] >= least ? packet + at + 2 : NULL;
        at += 2 + packet[at + 1];
    }
    return NULL;
}

/* --- the exchanges ------------------------------------------------------------------------------------------------ */

static bool begin(void) { /* the next machine's turn; false if all have one running */
    for (int tries = 0; tries < count; tries++) {
        int32_t machine = order[turns++ % count];
        struct machine *m = &machines[machine];
        if (m->phase != IDLE) continue;
        m->phase = WANTS_OFFER;
        m->turn = (m->turn + 1) & 0xfff;
        m->place = waits;
        waiting[waits++] = machine;
        post(machine);
        return true;
    }
    return false;
}

static void note_latency(int64_t ns) {
    if (latencies_used == latencies_room) {
        latencies_room = latencies_room ? 2 * latencies_room : 1 << 20;
        latencies = realloc(latencies, latencies_room * sizeof *latencies);
        if (!latencies) die("realloc");
    }
    latencies[latencies_used++] = ns < 0 ? 0 : ns / 100 > UINT32_MAX ? UINT32_MAX : ns / 100;
}

/* Takes one answer in; true if it ends an exchange. */
static bool take(const uint8_t *packet, ssize_t size, int64_t arrived) {
    if (size < OPTIONS + 4) fail("a short answer", -1, packet, size);
    uint32_t xid;
    memcpy(&xid, packet + 4, 4);
    xid = ntohl(xid);
    int32_t machine = xid & ((1 << NUMBER_BITS) - 1);
    if (machine >= count) fail("an answer to nobody", machine, packet, size);
    struct machine *m = &machines[machine];
    if (m->turn != xid >> NUMBER_BITS || m->phase == IDLE) return false; /* a second answer to what was sent twice */
    int number = first + machine;
    const uint8_t mac[6] = {0x52, 0x54, 0, number >> 16, number >> 8, number};
    uint32_t address = htonl(address_of(number));
    const uint8_t *type = option(packet, size, 53, 1), *from = option(packet, size, 54, 4);
    if (packet[0] != 2 || !type || !from) fail("no answer of a server", number, packet, size);
    if (*type == OFFER && m->phase == WANTS_ACK) return false;
    if (*type != (m->phase == WANTS_OFFER ? OFFER : ACK)) fail("an answer of the wrong type", number, packet, size);
    if (memcmp(packet + 28, mac, 6)) fail("another machine's answer", number, packet, size);
    if (memcmp(packet + 16, &address, 4)) fail("another machine's address", number, packet, size);
    if (memcmp(from, &server, 4)) fail("another server's answer", number, packet, size);
    if (!packet[108] && !option(packet, size, 67, 1)) fail("no boot file", number, packet, size);
    note_latency(arrived - m->sent);
    if (*type == OFFER) {
        m->phase = WANTS_ACK;
        post(machine);
        return false;
    }
    m->phase = IDLE;
    exchanges++;
    int32_t last = waiting[--waits];
    waiting[m->place] = last;
    machines[last].place = m->place;
    return true;
}

static void send_again(int64_t moment) {
    for (int i = 0; i < waits; i++) {
        if (moment - machines[waiting[i]].sent < SEND_AGAIN) continue;
        resent++;
        post(waiting[i]);
    }
    flush();
}

/* Waits until `until` at most; gives how many exchanges have ended. */
static int receive(int64_t until) {
    static uint8_t in[BATCH][2048];
    static char control[BATCH][64];
    static struct iovec parts[BATCH];
    static struct mmsghdr messages[BATCH];
    int64_t left = until - now();
    struct timespec patience = {left > 0 ? left / SECOND : 0, left > 0 ? left % SECOND : 0};
    struct pollfd ready = {sock, POLLIN, 0};
    if (ppoll(&ready, 1, &patience, NULL) <= 0) return 0;
    for (int i = 0; i < BATCH; i++) {
        parts[i] = (struct iovec){in[i], sizeof in[i]};
        messages[i].msg_hdr = (struct msghdr){
            .msg_iov = &parts[i], .msg_iovlen = 1, .msg_control = control[i], .msg_controllen = sizeof control[i]};
    }
    int got = recvmmsg(sock, messages, BATCH, MSG_DONTWAIT, NULL);
    if (got < 0) {
        if (errno == EAGAIN || errno == EINTR || errno == ECONNREFUSED) return 0;
        die("recvmmsg");
    }
    int ended = 0;
    for (int i = 0; i < got; i++) {
        struct cmsghdr *stamp = CMSG_FIRSTHDR(&messages[i].msg_hdr);
        struct timespec t;
        if (!stamp || stamp->cmsg_type != SCM_TIMESTAMPNS) die("no timestamp");
        memcpy(&t, CMSG_DATA(stamp), sizeof t);
        ended += take(in[i], messages[i].msg_len, t.tv_sec * SECOND + t.tv_nsec);
    }
    return ended;
}

static void closed(int at_a_time, int64_t end, bool once) {
    int64_t look = now() + SEND_AGAIN / 5;
    for (int i = 0; i < at_a_time && i < count; i++) begin();
    flush();
    while (waits) {
        int64_t moment = now();
        if (moment >= end) return;
        if (moment >= look) send_again(moment), look = moment + SEND_AGAIN / 5;
        for (int ended = receive(look < end ? look : end); ended > 0; ended--)
            if (!once || turns < count) begin();
        flush();
    }
}

static void open_loop(double rate, int64_t end) {
    int64_t moment = now(), next = moment, look = moment + SEND_AGAIN / 5;
    while ((moment = now()) < end) {
        for (; next <= moment; next += (int64_t)(-log((random_bits() >> 11) * 0x1p-53 + 0x1p-54) * SECOND / rate))
            begin();
        flush();
        if (moment >= look) send_again(moment), look = moment + SEND_AGAIN / 5;
        int64_t until = next < look ? next : look;
        receive(until < end ? until : end);
        flush();
    }
}

static int by_size(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static double percentile(double share) {
    return latencies_used ? latencies[(size_t)(share * (latencies_used - 1))] / 10.0 : 0;
}

static double cpu(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

int main(int argc, char **argv) {
    if (argc != 8 || !inet_aton(argv[1], &server) || !inet_aton(argv[2], &relay)) {
        fprintf(stderr, "usage: dhcp SERVER RELAY FIRST COUNT closed|once|open VALUE SECONDS\n");
        return 2;
    }
    first = atoi(argv[3]), count = atoi(argv[4]);
    const char *mode = argv[5];
    double value = atof(argv[6]), seconds = atof(argv[7]);
    if (count < 1 || count >= 1 << NUMBER_BITS || value < 1) return fprintf(stderr, "dhcp: out of range\n"), 2;

    machines = calloc(count, sizeof *machines);
    order = calloc(count, sizeof *order);
    waiting = calloc(count, sizeof *waiting);
    if (!machines || !order || !waiting) die("calloc");
    for (int i = 0; i < count; i++) order[i] = i;
    for (int i = count - 1; i > 0; i--) {
        int other = random_bits() % (i + 1);
        int32_t kept = order[i];
        order[i] = order[other], order[other] = kept;
    }
    /* Late answers of an earlier run are not taken for those of this one. */
    for (int i = 0; i < count; i++) machines[i].turn = (getpid() * 61) & 0xfff;
    bool once = !strcmp(mode, "once");
    turns = once ? 0 : getpid() * 7919L % count; /* not the same machines in each run */
    discover_size = build(discover, DISCOVER), request_size = build(request, REQUEST);
    for (int i = 0; i < BATCH; i++) {
        out_parts[i].iov_base = out[i];
        out_messages[i].msg_hdr = (struct msghdr){.msg_iov = &out_parts[i], .msg_iovlen = 1};
    }

    int size = 4 << 20, yes = 1;
    sock = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in mine = {AF_INET, htons(DHCP_PORT), relay, {0}}, theirs = {AF_INET, htons(DHCP_PORT), server, {0}};
    if (sock < 0 || setsockopt(sock, SOL_SOCKET, SO_RCVBUF, &size, sizeof size)
        || setsockopt(sock, SOL_SOCKET, SO_TIMESTAMPNS, &yes, sizeof yes)
        || bind(sock, (struct sockaddr *)&mine, sizeof mine) || connect(sock, (struct sockaddr *)&theirs, sizeof theirs))
        die("socket");
    prctl(PR_SET_TIMERSLACK, 1000);

    double cpu_before = cpu();
    int64_t start = now(), end = start + (int64_t)(seconds * SECOND);
    if (!strcmp(mode, "open")) open_loop(value, end);
    else closed((int)value, end, once);
    double took = (double)(now() - start) / SECOND, spent = cpu() - cpu_before;

    qsort(latencies, latencies_used, sizeof *latencies, by_size);
    printf("{\"exchanges\": %ld, \"seconds\": %.6f, \"busy\": %.4f, \"resent\": %ld, \"unanswered\": %d, "
           "\"p50_us\": %.1f, \"p99_us\": %.1f, \"max_us\": %.1f}\n",
        exchanges, took, spent / took, resent, waits, percentile(0.5), percentile(0.99), percentile(1));
    return 0;
}

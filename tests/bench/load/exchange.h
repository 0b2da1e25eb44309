/* Four-way exchanges of many machines with a DHCP server, through one relay: what dhcp.c and dhcp6.c have in common.
 *
 * Who includes it says before how many bits of a transaction there are, and how many of these are the machine's number;
 * and defines fill() and take().
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

enum { BATCH = 64, PACKET = 512, TURNS = 1 << (TRANSACTION_BITS - NUMBER_BITS) };
enum phase { IDLE, WANTS_OFFER, WANTS_ACK };

static const int64_t SECOND = 1000000000, SEND_AGAIN = 500000000;

struct machine {
    int64_t sent;        /* when its packet was sent last, nanoseconds */
    int32_t place;       /* in `waiting` */
    uint16_t turn;       /* tells the answers of this exchange from late ones of an earlier */
    uint8_t phase;
};

static int sock, first, count;
static struct machine *machines;
static int32_t *order, *waiting;
static int waits;
static int64_t turns;
static long exchanges, resent;

static uint32_t *latencies; /* tenths of a microsecond */
static size_t latencies_used, latencies_room;

static uint8_t out[BATCH][PACKET];
static struct iovec out_parts[BATCH];
static struct mmsghdr out_messages[BATCH];
static int32_t out_machines[BATCH];
static int outs;

/* Writes what a machine sends now: its first message, or what it asks for when it was offered that. Gives the size. */
static size_t fill(uint8_t *packet, int32_t machine, bool asks);

/* Takes one answer in, checked with machine_of() and advance(); true if it ends an exchange. */
static bool take(const uint8_t *packet, ssize_t size, int64_t arrived);

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

static void number_into(uint8_t *at, uint32_t number) {
    uint32_t wire = htonl(number);
    memcpy(at, &wire, 4);
}

/* The transaction of a machine's exchange. */
static uint32_t transaction_of(int32_t machine) {
    return (uint32_t)machines[machine].turn << NUMBER_BITS | (uint32_t)machine;
}

/* --- the exchanges ------------------------------------------------------------------------------------------------ */

static void flush(void);

static void post(int32_t machine) {
    out_parts[outs].iov_len = fill(out[outs], machine, machines[machine].phase == WANTS_ACK);
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

static bool begin(void) { /* the next machine's turn; false if all have one running */
    for (int tries = 0; tries < count; tries++) {
        int32_t machine = order[turns++ % count];
        struct machine *m = &machines[machine];
        if (m->phase != IDLE) continue;
        m->phase = WANTS_OFFER;
        m->turn = (m->turn + 1) % TURNS;
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

/* Whose answer has this transaction; -1: a second one to what was sent twice. */
static int32_t machine_of(uint32_t transaction, const uint8_t *packet, ssize_t size) {
    int32_t machine = transaction & ((1 << NUMBER_BITS) - 1);
    if (machine >= count) fail("an answer to nobody", machine, packet, size);
    struct machine *m = &machines[machine];
    return m->turn != transaction >> NUMBER_BITS || m->phase == IDLE ? -1 : machine;
}

/* The machine has got the right answer: it was offered its address, or has it now. True if that ends the exchange. */
static bool advance(int32_t machine, bool offered, int64_t arrived) {
    struct machine *m = &machines[machine];
    note_latency(arrived - m->sent);
    if (offered) {
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

/* Carries out FIRST COUNT MODE VALUE SECONDS over a socket that is bound to the relay and connected to the server. */
static int run(char **arguments, const char *name) {
    first = atoi(arguments[0]), count = atoi(arguments[1]);
    const char *mode = arguments[2];
    double value = atof(arguments[3]), seconds = atof(arguments[4]);
    if (count < 1 || count >= 1 << NUMBER_BITS || value < 1) return fprintf(stderr, "%s: out of range\n", name), 2;

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
    for (int i = 0; i < count; i++) machines[i].turn = (getpid() * 61) % TURNS;
    bool once = !strcmp(mode, "once");
    turns = once ? 0 : getpid() * 7919L % count; /* not the same machines in each run */
    for (int i = 0; i < BATCH; i++) {
        out_parts[i].iov_base = out[i];
        out_messages[i].msg_hdr = (struct msghdr){.msg_iov = &out_parts[i], .msg_iovlen = 1};
    }

    int size = 4 << 20, yes = 1;
    if (setsockopt(sock, SOL_SOCKET, SO_RCVBUF, &size, sizeof size)
        || setsockopt(sock, SOL_SOCKET, SO_TIMESTAMPNS, &yes, sizeof yes))
        die("setsockopt");
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

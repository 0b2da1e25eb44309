/* TFTP clients that cost little: the load of tests/bench/tftp.py.
 *
 * N clients fetch the same file at once, each from a socket of its own, with RFC 2348 blocks and RFC 7440 windows. Every
 * block is compared with the file that was to be sent. A client acknowledges the end of a window, the last block, and,
 * once, a gap; it asks again after a second of silence. One thread, one epoll; a JSON object at the end.
 *
 * With -p it is slow firmware: busy for so long before it acknowledges a window, and with -s, every 24th time, for so long.
 *
 * tftp SERVER PORT NAME FILE -b BLOCK -w WINDOW -n CLIENTS -a FIRST_ADDRESS [-t SECONDS] [-p MILLISECONDS] [-s MILLISECONDS]
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { BATCH = 64, MAX_CLIENTS = 10000, MAX_RETRIES = 12, STALL_EVERY = 24 };

static const double ASK_AGAIN = 1.0;      /* seconds of silence */
static const double REPORT_AGAIN = 0.02;  /* a gap is reported once in this time */

struct client {
    int fd;
    bool connected;      /* the server's port for this transfer is known */
    bool done;
    const char *failure; /* NULL: none */
    uint64_t received;   /* blocks, in order */
    unsigned in_window;
    double reported;     /* when the last gap was reported */
    double heard;        /* when a block came that was expected, or it was last asked again */
    double finished;
    int retries;
};

static struct sockaddr_in server;
static const uint8_t *content;
static size_t size;
static unsigned block = 512, window = 1, count = 1;
static uint64_t blocks;
static uint8_t request[512];
static size_t request_length;
static struct client *clients;
static uint64_t repeated_blocks, asked_again, gaps;
static unsigned running, granted_window;
static unsigned pause_ms, stall_ms, turns;

static struct mmsghdr messages[BATCH];
static struct iovec places[BATCH];

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void finish(struct client *c, const char *failure, double at)
{
    c->done = true;
    c->failure = failure;
    c->finished = at;
    running--;
    close(c->fd);
}

static void acknowledge(struct client *c)
{
    uint8_t packet[4] = {0, 4, (uint8_t)(c->received >> 8), (uint8_t)c->received};
    if (send(c->fd, packet, sizeof packet, 0) < 0 && errno != ECONNREFUSED && errno != EAGAIN)
        die("send");
    c->in_window = 0;
}

/* What firmware does with a window before it goes on. */
static void work(void)
{
    unsigned ms = stall_ms && ++turns % STALL_EVERY == 0 ? stall_ms : pause_ms;
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    if (ms)
        nanosleep(&t, NULL);
}

static void ask(struct client *c)
{
    if (sendto(c->fd, request, request_length, 0, (struct sockaddr *)&server, sizeof server) < 0)
        die("sendto");
}

/* The value of an option in an OACK, or 0. */
static unsigned option(const uint8_t *packet, size_t length, const char *name)
{
    const char *at = (const char *)packet + 2, *end = (const char *)packet + length;
    while (at < end) {
        const char *value = at + strnlen(at, (size_t)(end - at)) + 1;
        if (value >= end)
            return 0;
        if (strcasecmp(at, name) == 0)
            return (unsigned)strtoul(value, NULL, 10);
        at = value + strnlen(value, (size_t)(end - value)) + 1;
    }
    return 0;
}

static void take(struct client *c, const uint8_t *packet, size_t length, double at)
{
    if (c->done || length < 4)
        return;
    if (packet[1] == 5) {
        finish(c, "the server sent an error", at);
        return;
    }
    if (packet[1] == 6) {
        if (c->received > 0)
            return;
        unsigned granted = option(packet, length, "windowsize");
        granted_window = granted ? granted : 1;
        if (block != 512 && option(packet, length, "blksize") != block) {
            finish(c, "the block size was not granted", at);
            return;
        }
        c->heard = at;
        acknowledge(c);
        return;
    }
    if (packet[1] != 3)
        return;
    unsigned number = (unsigned)packet[2] << 8 | packet[3];
    if (number != ((c->received + 1) & 0xffff)) {
        uint16_t behind = (uint16_t)(c->received - number);
        if (behind < 0x8000)
            repeated_blocks++;
        else
            gaps++;
        if (at - c->reported > REPORT_AGAIN || (granted_window == 1 && behind == 0)) {
            c->reported = at;
            acknowledge(c);
        }
        return;
    }
    size_t offset = (size_t)c->received * block, expected = size - offset < block ? size - offset : block;
    if (length - 4 != expected || memcmp(packet + 4, content + offset, expected) != 0) {
        finish(c, "a block is wrong", at);
        return;
    }
    c->received++;
    c->heard = at;
    c->reported = 0;
    c->retries = 0;
    c->in_window++;
    if (c->received == blocks) {
        acknowledge(c);
        finish(c, NULL, at);
    } else if (c->in_window >= granted_window) {
        work();
        acknowledge(c);
    }
}

static void readable(struct client *c)
{
    double at = now();
    if (!c->connected) {
        struct sockaddr_in from;
        socklen_t length = sizeof from;
        ssize_t got = recvfrom(c->fd, places[0].iov_base, places[0].iov_len, 0, (struct sockaddr *)&from, &length);
        if (got < 0)
            return;
        if (connect(c->fd, (struct sockaddr *)&from, sizeof from) < 0)
            die("connect");
        c->connected = true;
        take(c, places[0].iov_base, (size_t)got, at);
        return;
    }
    int got = recvmmsg(c->fd, messages, BATCH, 0, NULL);
    if (got < 0 && errno == ECONNREFUSED)
        finish(c, "the server closed its port", at);
    for (int i = 0; i < got; i++)
        take(c, places[i].iov_base, messages[i].msg_len, at);
}

static void look_after(double at)
{
    for (unsigned i = 0; i < count; i++) {
        struct client *c = &clients[i];
        if (c->done || at - c->heard < ASK_AGAIN)
            continue;
        if (++c->retries > MAX_RETRIES) {
            finish(c, "the server is silent", at);
            continue;
        }
        asked_again++;
        c->heard = at;
        if (c->connected)
            acknowledge(c);
        else
            ask(c);
    }
}

static int udp(struct in_addr address, uint16_t port)
{
    struct sockaddr_in local = {.sin_family = AF_INET, .sin_addr = address, .sin_port = port};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&local, sizeof local) < 0)
        die("a socket of a client");
    return fd;
}

static void open_file(const char *path)
{
    struct stat found;
    int fd = open(path, O_RDONLY);
    if (fd < 0 || fstat(fd, &found) < 0)
        die(path);
    size = (size_t)found.st_size;
    content = mmap(NULL, size ? size : 1, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
    if (content == MAP_FAILED)
        die("mmap");
    close(fd);
}

static void add_string(const char *text)
{
    size_t length = strlen(text) + 1;
    if (request_length + length > sizeof request) {
        fputs("the request is too long\n", stderr);
        exit(1);
    }
    memcpy(request + request_length, text, length);
    request_length += length;
}

static void make_request(const char *name)
{
    char number[16];
    request[1] = 1;
    request_length = 2;
    add_string(name);
    add_string("octet");
    if (block != 512) {
        snprintf(number, sizeof number, "%u", block);
        add_string("blksize");
        add_string(number);
    }
    if (window != 1) {
        snprintf(number, sizeof number, "%u", window);
        add_string("windowsize");
        add_string(number);
    }
}

static void print_result(double start)
{
    double last = start;
    uint64_t bytes = 0;
    struct rusage used;
    for (unsigned i = 0; i < count; i++) {
        if (clients[i].finished > last)
            last = clients[i].finished;
        bytes += clients[i].failure ? 0 : size;
    }
    getrusage(RUSAGE_SELF, &used);
    double cpu = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec)
        + (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
    printf("{\"seconds\": %.6f, \"bytes\": %llu, \"window\": %u, \"cpu\": %.6f, \"blocks\": %llu, \"repeated_blocks\": %llu, "
           "\"gaps\": %llu, \"asked_again\": %llu, ",
        last - start, (unsigned long long)bytes, granted_window, cpu, (unsigned long long)blocks, (unsigned long long)repeated_blocks,
        (unsigned long long)gaps, (unsigned long long)asked_again);
    printf("\"clients\": [");
    for (unsigned i = 0; i < count; i++)
        printf("%s%.6f", i ? ", " : "", clients[i].finished - start);
    printf("], \"failures\": [");
    bool first = true;
    for (unsigned i = 0; i < count; i++)
        if (clients[i].failure) {
            printf("%s\"client %u at block %llu: %s\"", first ? "" : ", ", i, (unsigned long long)clients[i].received,
                clients[i].failure);
            first = false;
        }
    puts("]}");
}

int main(int argc, char **argv)
{
    const char *first_address = "0.0.0.0";
    double limit = 60.0;
    int letter;
    while ((letter = getopt(argc, argv, "b:w:n:a:t:p:s:")) != -1) {
        switch (letter) {
        case 'b': block = (unsigned)atoi(optarg); break;
        case 'w': window = (unsigned)atoi(optarg); break;
        case 'n': count = (unsigned)atoi(optarg); break;
        case 'a': first_address = optarg; break;
        case 't': limit = atof(optarg); break;
        case 'p': pause_ms = (unsigned)atoi(optarg); break;
        case 's': stall_ms = (unsigned)atoi(optarg); break;
        default: return 2;
        }
    }
    if (argc - optind != 4 || count < 1 || count > MAX_CLIENTS || block < 8) {
        fputs("tftp SERVER PORT NAME FILE [options]; see the head of the source\n", stderr);
        return 2;
    }
    server.sin_family = AF_INET;
    server.sin_port = htons((uint16_t)atoi(argv[optind + 1]));
    if (inet_pton(AF_INET, argv[optind], &server.sin_addr) != 1)
        return 2;
    open_file(argv[optind + 3]);
    blocks = size / block + 1;
    make_request(argv[optind + 2]);
    granted_window = 1;

    for (int i = 0; i < BATCH; i++) {
        places[i].iov_len = block + 4 < 512 ? 512 : block + 4;
        places[i].iov_base = malloc(places[i].iov_len);
        messages[i].msg_hdr.msg_iov = &places[i];
        messages[i].msg_hdr.msg_iovlen = 1;
    }
    clients = calloc(count, sizeof *clients);
    int poll = epoll_create1(0);
    struct in_addr base;
    if (clients == NULL || poll < 0 || inet_pton(AF_INET, first_address, &base) != 1)
        die("start");
    for (unsigned i = 0; i < count; i++) {
        struct in_addr own = {base.s_addr ? htonl(ntohl(base.s_addr) + i) : 0};
        clients[i].fd = udp(own, 0);
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
        if (epoll_ctl(poll, EPOLL_CTL_ADD, clients[i].fd, &event) < 0)
            die("epoll_ctl");
    }
    double start = now(), next_look = start + 0.05;
    running = count;
    for (unsigned i = 0; i < count; i++) {
        clients[i].heard = start;
        ask(&clients[i]);
    }
    while (running > 0) {
        struct epoll_event events[256];
        int ready = epoll_wait(poll, events, 256, 20);
        for (int i = 0; i < ready; i++)
            if (!clients[events[i].data.u32].done)
                readable(&clients[events[i].data.u32]);
        double at = now();
        if (at >= next_look) {
            look_after(at);
            next_look = at + 0.05;
        }
        if (at - start > limit)
            for (unsigned i = 0; i < count; i++)
                if (!clients[i].done)
                    finish(&clients[i], "out of time", at);
    }
    print_result(start);
    return 0;
}

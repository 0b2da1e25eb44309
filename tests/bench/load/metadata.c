/* Machines whose cloud-init reads its metadata, for the benchmark of that: all of a crawl's requests one after the
 * other, each on a connection of its own or all on one.
 *
 *   metadata SERVER PORT MACHINES CRAWLS AT_ONCE KEEP AGENT STATUS PATH [STATUS PATH ...]
 *
 * The crawls are made by the machines numbered from 0 to MACHINES - 1 in turn, AT_ONCE of them at a time; a machine's
 * requests come from its own address (`bed.machine_ip`). KEEP is 1 where a crawl has one connection, 0 where each of its
 * requests has one: then the client closes it as soon as it has the answer, which is what cloud-init does (a
 * requests.Session for each URL: its request says keep-alive, arrives in one segment, and is followed by the FIN).
 * AGENT is the User-Agent. {mac} in a PATH is the machine's own (`ours.mac`). An answer with another status than STATUS ends the run.
 *
 * Prints JSON: crawls, requests, seconds, bytes of bodies, p50, p99 and most: milliseconds from before the connect(2)
 * to the last byte; p50 and p99 of whole crawls as crawl_p50 and crawl_p99.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define MAX_TARGETS 64
#define ANSWER 65536
#define FIXED_WORDS 8

/* `mac`: where in the request the machine's MAC goes, 0 if nowhere. */
struct target {
    int status, length, mac;
    char request[1024];
};

/* `asked` is 0 while the connection is being made. */
struct machine {
    int fd, target, got;
    long number;
    struct sockaddr_in own;
    double asked, began, crawl_began;
    char answer[ANSWER + 1];
};

static struct target targets[MAX_TARGETS];
static struct sockaddr_in server;
static int target_count, keep, poll_fd;
static long next_crawl, crawls, machines, request_count, crawl_count;
static double *requests_ms, *crawls_ms, bytes;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void fail(const char *what, const char *more)
{
    fprintf(stderr, "metadata: %s: %.300s %s\n", what, more, errno ? strerror(errno) : "");
    exit(1);
}

static void join(struct machine *m)
{
    int yes = 1;
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = m};
    m->began = now();
    m->asked = 0;
    m->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(m->fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &yes, sizeof yes);
    setsockopt(m->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    if (bind(m->fd, (struct sockaddr *)&m->own, sizeof m->own))
        fail("bind", inet_ntoa(m->own.sin_addr));
    if (connect(m->fd, (struct sockaddr *)&server, sizeof server) && errno != EINPROGRESS)
        fail("connect", inet_ntoa(m->own.sin_addr));
    if (epoll_ctl(poll_fd, EPOLL_CTL_ADD, m->fd, &event))
        fail("epoll_ctl", "");
}

static void ask(struct machine *m)
{
    struct target *t = &targets[m->target];
    m->got = 0;
    if (t->mac) {
        char mac[18];
        snprintf(mac, sizeof mac, "52:54:00:%02lx:%02lx:%02lx", m->number >> 16 & 255, m->number >> 8 & 255, m->number & 255);
        memcpy(t->request + t->mac, mac, 17);
    }
    m->asked = now();
    if (send(m->fd, t->request, t->length, MSG_NOSIGNAL) != t->length)
        fail("send", t->request);
}

/* 0: there is no crawl left for it. */
static int begin(struct machine *m)
{
    if (next_crawl == crawls)
        return 0;
    long number = m->number = next_crawl++ % machines;
    m->own.sin_family = AF_INET;
    m->own.sin_addr.s_addr = htonl(10u << 24 | (uint32_t)(67 + number / 50000) << 16 |
                                   (uint32_t)(number / 200 % 250) << 8 | (uint32_t)(2 + number % 200));
    m->target = 0;
    join(m);
    m->crawl_began = m->began;
    return 1;
}

/* What has arrived of the answer. 1: it is whole. */
static int take(struct machine *m)
{
    struct target *t = &targets[m->target];
    errno = 0;
    ssize_t count = recv(m->fd, m->answer + m->got, ANSWER - m->got, 0);
    if (count < 0 && errno == EAGAIN)
        return 0;
    if (count <= 0)
        fail("closed before the answer was whole", t->request);
    m->got += count;
    m->answer[m->got] = 0;
    char *end = strstr(m->answer, "\r\n\r\n");
    if (end == NULL)
        return 0;
    char *length = strcasestr(m->answer, "\r\ncontent-length:");
    if (length == NULL || length > end || atoi(m->answer + 9) != t->status)
        fail(t->request, m->answer);
    long size = atol(length + 17);
    if (m->got < end + 4 - m->answer + size)
        return 0;
    bytes += size;
    return 1;
}

/* After an answer: the next request, or the next crawl. 0: nothing is left to do. */
static int go_on(struct machine *m)
{
    double t = now();
    requests_ms[request_count++] = (t - (keep && m->target ? m->asked : m->began)) * 1e3;
    int last = ++m->target == target_count;
    if (keep && !last) {
        ask(m);
        return 1;
    }
    close(m->fd);
    if (!last) {
        join(m);
        return 1;
    }
    crawls_ms[crawl_count++] = (t - m->crawl_began) * 1e3;
    return begin(m);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int count, char **words)
{
    if (count < FIXED_WORDS + 2 || count % 2 || count > FIXED_WORDS + 2 * MAX_TARGETS)
        return 2;
    server.sin_family = AF_INET;
    server.sin_port = htons(atoi(words[2]));
    inet_pton(AF_INET, words[1], &server.sin_addr);
    machines = atol(words[3]), crawls = atol(words[4]);
    int at_once = atoi(words[5]);
    keep = atoi(words[6]);
    for (int i = FIXED_WORDS; i < count; i += 2) {
        struct target *t = &targets[target_count++];
        char *path = words[i + 1], *mac = strstr(path, "{mac}");
        t->status = atoi(words[i]);
        t->mac = mac == NULL ? 0 : (int)(mac - path) + 4;  /* after "GET " */
        t->length = snprintf(t->request, sizeof t->request,
                             "GET %.*s%s%s HTTP/1.1\r\nHost: %s:%s\r\nUser-Agent: %s\r\nAccept-Encoding: gzip, deflate\r\n"
                             "Accept: */*\r\nConnection: keep-alive\r\n\r\n",
                             mac == NULL ? 1000 : (int)(mac - path), path, mac == NULL ? "" : "00:00:00:00:00:00",
                             mac == NULL ? "" : mac + 5, words[1], words[2], words[7]);
    }
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    requests_ms = malloc(crawls * target_count * sizeof *requests_ms);
    crawls_ms = malloc(crawls * sizeof *crawls_ms);
    struct machine *all = calloc(at_once, sizeof *all);
    poll_fd = epoll_create1(0);
    double start = now();
    int left = 0;
    for (int i = 0; i < at_once; i++)
        left += begin(&all[i]);
    while (left > 0) {
        struct epoll_event events[256];
        int ready = epoll_wait(poll_fd, events, 256, -1);
        for (int i = 0; i < ready; i++) {
            struct machine *m = events[i].data.ptr;
            int problem = 0;
            socklen_t size = sizeof problem;
            if (m->asked == 0) {
                if (getsockopt(m->fd, SOL_SOCKET, SO_ERROR, &problem, &size) || problem) {
                    errno = problem;
                    fail("connect", inet_ntoa(m->own.sin_addr));
                }
                if (events[i].events & EPOLLOUT)
                    ask(m);
            }
            if (m->asked != 0 && events[i].events & EPOLLIN && take(m))
                left -= !go_on(m);
        }
    }
    double seconds = now() - start;
    qsort(requests_ms, request_count, sizeof *requests_ms, by_size);
    qsort(crawls_ms, crawl_count, sizeof *crawls_ms, by_size);
    printf("{\"crawls\": %ld, \"requests\": %ld, \"seconds\": %.6f, \"bytes\": %.0f, \"p50\": %.4f, \"p99\": %.4f, "
           "\"most\": %.4f, \"crawl_p50\": %.4f, \"crawl_p99\": %.4f}\n",
           crawl_count, request_count, seconds, bytes, requests_ms[request_count / 2],
           requests_ms[request_count * 99 / 100], requests_ms[request_count - 1], crawls_ms[crawl_count / 2],
           crawls_ms[crawl_count * 99 / 100]);
    return 0;
}

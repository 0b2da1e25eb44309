/* HTTP clients for the benchmark of files and small requests: many connections in one thread, bodies thrown away in
 * the kernel (MSG_TRUNC, tcp(7)), so that the server is what is measured.
 *
 *   http SERVER PORT PATH ADDRESSES CONNECTIONS REQUESTS SECONDS PAUSE
 *
 * ADDRESSES: how many the client has, from 10.67.0.2 on; connections take them in turn. Each connection asks again and
 * again, REQUESTS times, or for SECONDS if that is not 0; PAUSE microseconds after each answer. PATH may have one %d:
 * the number of the request of its connection. Prints JSON: bytes of bodies, seconds in all, requests, p50 and p99 of
 * their milliseconds, and first and last: seconds after which the first and the last connection had all it asked for.
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

#define MAX_SAMPLES 4000000
#define TAKE (8 << 20)
#define HEAD 8192

struct client {
    int fd;
    int requests;
    int head_length;     /* bytes of a head that has not arrived whole */
    long missing;        /* bytes of the body; -1 while the head is awaited */
    double asked, next;  /* next: when to ask again, 0 if not waiting */
    int done;
    char head[HEAD + 1];
};

static const char *path;
static double *samples;
static long sample_count;
static double total_bytes;
static char sink[1];

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void fail(const char *what)
{
    fprintf(stderr, "http: %s: %s: %s\n", path, what, errno ? strerror(errno) : "");
    exit(1);
}

static void ask(struct client *c)
{
    char where[512], request[1024];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(where, sizeof where, path, c->requests);
#pragma GCC diagnostic pop
    int length = snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: server\r\n\r\n", where);
    c->missing = -1;
    c->head_length = 0;
    c->next = 0;
    c->asked = now();
    if (send(c->fd, request, length, MSG_NOSIGNAL) != length)
        fail("send");
}

/* What has arrived of the answer. 1: it is whole. */
static int take(struct client *c)
{
    if (c->missing < 0) {
        errno = 0;
        ssize_t count = recv(c->fd, c->head + c->head_length, HEAD - c->head_length, MSG_DONTWAIT);
        if (count < 0 && errno == EAGAIN)
            return 0;
        if (count <= 0)
            fail("the connection was closed before the answer's head");
        c->head_length += count;
        c->head[c->head_length] = 0;
        char *end = strstr(c->head, "\r\n\r\n");
        if (end == NULL) {
            if (c->head_length == HEAD)
                fail("an endless head");
            return 0;
        }
        char *length = strcasestr(c->head, "\r\ncontent-length:");
        if (strncmp(c->head, "HTTP/1.1 200", 12) != 0 || length == NULL || length > end) {
            c->head[60] = 0;
            errno = 0;
            fail(c->head);
        }
        long size = atol(length + 17);
        total_bytes += size;
        c->missing = size - (c->head_length - (end + 4 - c->head));
    }
    while (c->missing > 0) {
        errno = 0;
        ssize_t count = recv(c->fd, sink, c->missing < TAKE ? c->missing : TAKE, MSG_DONTWAIT | MSG_TRUNC);
        if (count < 0 && errno == EAGAIN)
            return 0;
        if (count <= 0)
            fail("the connection was closed within a body");
        c->missing -= count;
    }
    return 1;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int count, char **words)
{
    if (count != 9)
        return 2;
    path = words[3];
    struct sockaddr_in server = {.sin_family = AF_INET, .sin_port = htons(atoi(words[2]))};
    inet_pton(AF_INET, words[1], &server.sin_addr);
    int addresses = atoi(words[4]), connections = atoi(words[5]), requests = atoi(words[6]);
    double seconds = atof(words[7]), pause = atof(words[8]) / 1e6;
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    samples = malloc(MAX_SAMPLES * sizeof *samples);
    struct client *clients = calloc(connections, sizeof *clients);
    int poll = epoll_create1(0);
    for (int i = 0; i < connections; i++) {
        struct client *c = &clients[i];
        struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x0a430002 + i % addresses)};
        int yes = 1;
        c->fd = socket(AF_INET, SOCK_STREAM, 0);
        if (bind(c->fd, (struct sockaddr *)&own, sizeof own) || connect(c->fd, (struct sockaddr *)&server, sizeof server))
            fail("connect");
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(poll, EPOLL_CTL_ADD, c->fd, &event);
    }
    double start = now(), first = 0, last = 0;
    int left = connections, waiting = 0;
    for (int i = 0; i < connections; i++)
        ask(&clients[i]);
    while (left > 0) {
        struct epoll_event events[256];
        struct timespec nap = {.tv_nsec = 100000};  /* of those that pause */
        int ready = epoll_pwait2(poll, events, 256, waiting ? &nap : NULL, NULL);
        for (int i = 0; i < ready; i++) {
            struct client *c = events[i].data.ptr;
            if (c->done || c->next > 0 || !take(c))
                continue;
            double t = now();
            if (sample_count < MAX_SAMPLES)
                samples[sample_count++] = (t - c->asked) * 1e3;
            c->requests++;
            if (seconds > 0 ? t - start >= seconds : c->requests >= requests) {
                c->done = 1;
                left--;
                last = t - start;
                if (first == 0)
                    first = last;
            } else if (pause > 0) {
                c->next = t + pause;
                waiting++;
            } else {
                ask(c);
            }
        }
        if (waiting) {
            double t = now();
            for (int i = 0; i < connections; i++)
                if (clients[i].next > 0 && clients[i].next <= t) {
                    waiting--;
                    ask(&clients[i]);
                }
        }
    }
    qsort(samples, sample_count, sizeof *samples, by_size);
    printf("{\"bytes\": %.0f, \"seconds\": %.6f, \"requests\": %ld, \"p50\": %.4f, \"p99\": %.4f, \"first\": %.4f, "
           "\"last\": %.4f}\n",
           total_bytes, last, sample_count, samples[sample_count / 2], samples[sample_count * 99 / 100], first, last);
    return 0;
}

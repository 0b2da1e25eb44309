/* The machines of a DHCPv6 benchmark, as a relay passes their messages on: SOLICIT, ADVERTISE, REQUEST, REPLY.
 *
 *   dhcp6 SERVER RELAY FIRST COUNT MODE VALUE SECONDS
 *
 * Each message is what EDK2's PXE client sends, but for the DUID, which is made of the MAC so that every server can know
 * a machine by it (RFC 8415 section 11.4). The relay names itself as the link, adds an Interface-Id, and says the
 * machine's link-local address. The machines numbered from FIRST on have the MAC and the address that tests.bench.bed and
 * tests.bench.ours give them; they take their turns in a random order. MODE is
 *
 *   closed  VALUE of them wait for an answer at any time: how much the server can do
 *   once    the same, until each had one turn
 *   open    exchanges begin VALUE times a second, at random moments, whatever the server does: how long it takes then
 *
 * Every answer is checked: types, transaction, DUIDs, IAID, address, and that there is a boot file. A message without an
 * answer is sent again after half a second. The latency of an answer is from just before the packet is handed to the
 * kernel until the kernel has got the answer, so that a generator that waits for its turn changes nothing.
 *
 * Prints JSON: exchanges, seconds, busy (share of a core that this program took), resent, p50_us, p99_us, max_us.
 */
#define TRANSACTION_BITS 24
#define NUMBER_BITS 17
#include "exchange.h"

enum { IAID = 1 }; /* as perfdhcp has: Kea gives an address to no other one of the same client */
enum { DHCP6_PORT = 547, RELAY_HEAD = 34, IA_WITH_ADDRESS = 40, MOST_DUID = 128 };
enum { SOLICIT = 1, ADVERTISE = 2, REQUEST = 3, REPLY = 7, RELAY_FORW = 12, RELAY_REPL = 13 };
enum { CLIENTID = 1, SERVERID = 2, IA_NA = 3, IAADDR = 5, RELAY_MSG = 9, INTERFACE_ID = 18, BOOTFILE_URL = 59 };

static struct in6_addr server, relay;
static uint8_t server_duid[MOST_DUID]; /* of the first answer; the other answers must have the same */
static size_t server_duid_size;

struct value {
    const uint8_t *at; /* NULL: there is none */
    size_t size;
};

/* --- the packets -------------------------------------------------------------------------------------------------- */

static void mac_into(uint8_t *at, int number) {
    memcpy(at, "\x52\x54\x00", 3);
    at[3] = number >> 16, at[4] = number >> 8, at[5] = number;
}

static void address_into(uint8_t *at, int number) { /* bed.machine_ip6 */
    memcpy(at, "\xfd\x67\0\0\0\0\0\0\0\0\0\1", 12);
    number_into(at + 12, number);
}

static void short_into(uint8_t *at, size_t number) {
    at[0] = number >> 8, at[1] = number;
}

static uint8_t *head_into(uint8_t *at, int code, size_t size) {
    short_into(at, code), short_into(at + 2, size);
    return at + 4;
}

static uint8_t *option_into(uint8_t *at, int code, const void *value, size_t size) {
    memcpy(head_into(at, code, size), value, size);
    return at + 4 + size;
}

static size_t fill(uint8_t *packet, int32_t machine, bool asks) {
    static const char class[] = "\x00\x00\x01\x57\x00\x20PXEClient:Arch:00007:UNDI:003000";
    int number = first + machine;
    uint8_t duid[10] = {0, 3, 0, 1}, *end = packet, *peer, *inner;
    mac_into(duid + 4, number);

    *end++ = RELAY_FORW, *end++ = 0;
    memcpy(end, &relay, 16), end += 16;
    peer = end, end += 16;
    memcpy(peer, "\xfe\x80\0\0\0\0\0\0\x50\x54\0\xff\xfe", 13);
    memcpy(peer + 13, duid + 7, 3);
    end = option_into(end, INTERFACE_ID, "ge-0/0/7", 8);
    inner = end = head_into(end, RELAY_MSG, 0);

    number_into(end, transaction_of(machine));
    *end = asks ? REQUEST : SOLICIT, end += 4;
    end = option_into(end, CLIENTID, duid, sizeof duid);
    if (asks) end = option_into(end, SERVERID, server_duid, server_duid_size);
    end = head_into(end, IA_NA, asks ? IA_WITH_ADDRESS : 12);
    number_into(end, IAID), end += 4;
    memset(end, 0xff, 8), end += 8;     /* T1, T2 */
    if (asks) {
        end = head_into(end, IAADDR, 24);
        address_into(end, number), end += 16;
        memset(end, 0xff, 8), end += 8; /* lifetimes */
    }
    end = option_into(end, 6, "\0\x3b\0\x3c\0\x17", 6);     /* wanted: boot file and its parameters, name servers */
    end = option_into(end, 62, "\1\3\0", 3);                /* UNDI 3.0 */
    end = option_into(end, 61, "\0\7", 2);                  /* x86-64 UEFI */
    end = option_into(end, 16, class, sizeof class - 1);
    end = option_into(end, 8, "\0\0", 2);                   /* elapsed time */
    short_into(inner - 2, end - inner);
    return end - packet;
}

/* The first option of this code between two places, and of this size at least. */
static struct value option(const uint8_t *at, const uint8_t *end, int wanted, size_t least) {
    while (end - at >= 4) {
        int code = at[0] << 8 | at[1];
        size_t size = at[2] << 8 | at[3];
        at += 4;
        if ((size_t)(end - at) < size) break;
        if (code == wanted && size >= least) return (struct value){at, size};
        at += size;
    }
    return (struct value){NULL, 0};
}

static bool take(const uint8_t *packet, ssize_t size, int64_t arrived) {
    const uint8_t *end = packet + size;
    if (size < RELAY_HEAD || packet[0] != RELAY_REPL) fail("no answer to a relay", -1, packet, size);
    struct value inner = option(packet + RELAY_HEAD, end, RELAY_MSG, 4);
    struct value port = option(packet + RELAY_HEAD, end, INTERFACE_ID, 8);
    if (!inner.at || !port.at || memcmp(port.at, "ge-0/0/7", 8)) fail("not what a relay needs", -1, packet, size);
    const uint8_t *message = inner.at, *last = inner.at + inner.size;
    int32_t machine = machine_of(message[1] << 16 | message[2] << 8 | message[3], packet, size);
    if (machine < 0) return false;

    struct machine *m = &machines[machine];
    int number = first + machine;
    uint8_t type = message[0], mac[6], iaid[4], address[16];
    if (type != ADVERTISE && type != REPLY) fail("no answer of a server", number, packet, size);
    if (type == ADVERTISE && m->phase == WANTS_ACK) return false;
    if (type != (m->phase == WANTS_OFFER ? ADVERTISE : REPLY)) fail("an answer of the wrong type", number, packet, size);
    struct value client = option(message + 4, last, CLIENTID, 10), from = option(message + 4, last, SERVERID, 1);
    struct value association = option(message + 4, last, IA_NA, IA_WITH_ADDRESS);
    mac_into(mac, number), number_into(iaid, IAID), address_into(address, number);
    if (!client.at || client.size != 10 || memcmp(client.at + 4, mac, 6))
        fail("another machine's answer", number, packet, size);
    if (!association.at || memcmp(association.at, iaid, 4)) fail("no address", number, packet, size);
    struct value given = option(association.at + 12, association.at + association.size, IAADDR, 24);
    if (!given.at || memcmp(given.at, address, 16)) fail("another machine's address", number, packet, size);
    if (!option(message + 4, last, BOOTFILE_URL, 8).at) fail("no boot file", number, packet, size);
    if (!from.at || from.size > MOST_DUID) fail("an answer of nobody", number, packet, size);
    if (!server_duid_size) memcpy(server_duid, from.at, server_duid_size = from.size);
    if (from.size != server_duid_size || memcmp(from.at, server_duid, from.size))
        fail("another server's answer", number, packet, size);
    return advance(machine, type == ADVERTISE, arrived);
}

int main(int argc, char **argv) {
    if (argc != 8 || inet_pton(AF_INET6, argv[1], &server) != 1 || inet_pton(AF_INET6, argv[2], &relay) != 1) {
        fprintf(stderr, "usage: dhcp6 SERVER RELAY FIRST COUNT closed|once|open VALUE SECONDS\n");
        return 2;
    }
    sock = socket(AF_INET6, SOCK_DGRAM, 0);
    struct sockaddr_in6 mine = {AF_INET6, htons(DHCP6_PORT), 0, relay, 0};
    struct sockaddr_in6 theirs = {AF_INET6, htons(DHCP6_PORT), 0, server, 0};
    if (sock < 0 || bind(sock, (struct sockaddr *)&mine, sizeof mine)
        || connect(sock, (struct sockaddr *)&theirs, sizeof theirs))
        die("socket");
    return run(argv + 3, "dhcp6");
}

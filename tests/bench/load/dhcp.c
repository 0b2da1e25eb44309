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
#define TRANSACTION_BITS 32
#define NUMBER_BITS 20
#include "exchange.h"

enum { DHCP_PORT = 67, OPTIONS = 240 };
enum { DISCOVER = 1, OFFER = 2, REQUEST = 3, ACK = 5 };

static struct in_addr server, relay;
static uint8_t discover[PACKET], request[PACKET];
static size_t discover_size, request_size;

static uint32_t address_of(int number) { /* bed.machine_ip */
    return 10u << 24 | (uint32_t)(67 + number / 50000) << 16 | (uint32_t)(number / 200 % 250) << 8
        | (uint32_t)(2 + number % 200);
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

static size_t fill(uint8_t *packet, int32_t machine, bool asks) {
    int number = first + machine;
    memcpy(packet, asks ? request : discover, asks ? request_size : discover_size);
    number_into(packet + 4, transaction_of(machine));
    packet[30] = 0, packet[31] = number >> 16, packet[32] = number >> 8, packet[33] = number;
    number_into(packet + OPTIONS + 3 + 15, number);
    if (asks) number_into(packet + OPTIONS + 3 + 19 + 6 + 2, address_of(number));
    return asks ? request_size : discover_size;
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

static bool take(const uint8_t *packet, ssize_t size, int64_t arrived) {
    if (size < OPTIONS + 4) fail("a short answer", -1, packet, size);
    uint32_t xid;
    memcpy(&xid, packet + 4, 4);
    int32_t machine = machine_of(ntohl(xid), packet, size);
    if (machine < 0) return false;
    struct machine *m = &machines[machine];
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
    return advance(machine, *type == OFFER, arrived);
}

int main(int argc, char **argv) {
    if (argc != 8 || !inet_aton(argv[1], &server) || !inet_aton(argv[2], &relay)) {
        fprintf(stderr, "usage: dhcp SERVER RELAY FIRST COUNT closed|once|open VALUE SECONDS\n");
        return 2;
    }
    discover_size = build(discover, DISCOVER), request_size = build(request, REQUEST);
    sock = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in mine = {AF_INET, htons(DHCP_PORT), relay, {0}}, theirs = {AF_INET, htons(DHCP_PORT), server, {0}};
    if (sock < 0 || bind(sock, (struct sockaddr *)&mine, sizeof mine)
        || connect(sock, (struct sockaddr *)&theirs, sizeof theirs))
        die("socket");
    return run(argv + 3, "dhcp");
}

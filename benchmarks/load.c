// Puts and takes items over many connections in one thread, and measures what that costs the server.
//
// It speaks to kestreld and Kestrel, memcached, redis (lists), Disque (jobs) and beanstalkd. Every item carries its
// number, and what follows in it depends on that: each one that comes back is compared byte for byte, and has to come
// once.
// With `--keys` memcached and kestreld's cache are used as what they are: puts and takes are of random keys, and the
// number of a value is that of its key.
// The result is one line of JSON; the exit status is 0 if all is well, 1 if items or answers were wrong, 2 if it
// could not be run. The clients wait for answers before they send more (a closed loop), so a stalled server delays
// them, and percentiles are those of the requests sent, not of those that would have been.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <math.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t u64;

enum {
    ITEM_BYTES_MIN = 16,  // its number, in hexadecimal
    ITEM_BYTES_MAX = 1 << 20,
    FILLINGS = 1021,  // so many different ones; a prime
    SIZES = 4096,     // of mixed sizes, then they repeat
    RECEIVE_BYTES = 256 * 1024,
    FILL_BYTES = 64 * 1024,  // on the way on one connection while items are put before the measurement
    FILL_ITEMS = 64,
    EVENTS = 256,
    LEASE_MS = 600000,
};
static const u64 PATIENCE_NS = 60000000000ull;  // without any answer

enum work { PUT, TAKE, PUT_TAKE, RELIABLE, OPENED, LEASED, DRAIN_ONLY };
enum phase { FILL, WORK, FINISH, DRAIN };
enum kind { OF_PUT, OF_TAKE, OF_ACK, OF_OTHER };

// What an answer says. INCOMPLETE: there is more of it to come.
enum meaning { INCOMPLETE, OK, ITEM, EMPTY, REFUSED };

struct answer {
    size_t bytes;  // all of it
    const char *item;
    size_t item_bytes;
    u64 id;  // beanstalkd's; the token of a lease
    const char *job_id;
};

struct request {
    enum kind kind;
    u64 begun_ns;
    u64 number;         // of the item put; of the item to come back, with memcached
    size_t item_bytes;  // of the item that an acknowledgement ends the take of, 0 = it is only sent along
};

struct connection {
    int fd;
    unsigned index;
    bool wants_to_send;
    char *in, *out;
    size_t in_bytes, in_room, out_bytes, out_at, out_room;
    struct request *requests;  // a ring of those not answered
    unsigned first, next, ring;
    unsigned in_flight;  // operations: one may be several requests
    u64 turn;            // operations so far, which decides about the queue
    bool takes_next;     // the put of its pair is out
    u64 last_put;
    char ack[256];  // to be sent with the next request, "" = none
    bool is_finished, is_dry;
    u64 drains;  // queue it takes the rest from
};

struct protocol {
    const char *name;
    bool keeps;        // a take does not remove the item, and each connection has a queue of its own
    bool counts_acks;  // they are operations of their own, as the commands of others are
    void (*put)(struct connection *, u64 queue, const char *item, size_t item_bytes);
    void (*take)(struct connection *, u64 queue, bool reliable);
    void (*ack)(struct connection *, const struct answer *);  // prepares that of an item; NULL = takes need none
    enum meaning (*read)(enum kind, const char *, size_t, struct answer *);
};

// Options
static const char *queue_name = "load";
static unsigned port, client_count = 1, depth = 1, idle_count;
static u64 queue_count = 1, fill_count, first_number, last_number;
static u64 key_count;     // 0 = each connection has a key of its own
static u64 expires_at_s;  // when what is put expires, since the epoch; 0 = never
static double seconds = 1, warm_seconds = -1;
static size_t size_min = 64, size_max = 64;
static enum work work = PUT_TAKE;
static u64 operations_min;  // measured, even when that takes longer
static bool leaves, acks_join;
static int server_pid;
static const struct protocol *protocol;

// State
static enum phase phase = FILL;
static int poller;
static struct connection *connections;
static char filling[ITEM_BYTES_MAX + FILLINGS];
static u64 sizes[SIZES];
static u64 now_ns, heard_ns;
static u64 put_count, taken_count;
static bool *taken;
static u64 taken_room;
static uint32_t *latencies_ns;
static u64 latency_count, latency_room;
static bool measuring;
static u64 measured_puts, measured_takes, measured_acks, measured_bytes;
static u64 faults;
static char first_fault[200];

static void give_up(const char *format, ...) {
    va_list values;
    va_start(values, format);
    fputs("load: ", stderr);
    vfprintf(stderr, format, values);
    fputc('\n', stderr);
    va_end(values);
    exit(2);
}

static void fault(const char *format, ...) {
    if (faults++ == 0) {
        va_list values;
        va_start(values, format);
        vsnprintf(first_fault, sizeof first_fault, format, values);
        va_end(values);
    }
}

static void *grown(void *old, size_t bytes) {
    void *new = realloc(old, bytes);
    if (new == NULL) give_up("out of memory");
    return new;
}

static u64 read_clock(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return now_ns = t.tv_sec * 1000000000ull + t.tv_nsec;
}

// The server's processor time

static u64 cpu_ns_of(int pid) {
    clockid_t clock;
    struct timespec t;
    if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &t) != 0) return 0;
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

// User and system time of a process, of the children it has waited for, and of those it has.
static u64 family_cpu_ns(int pid) {
    char path[64], line[1024];
    u64 used_ns = cpu_ns_of(pid);
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (file == NULL) return 0;
    unsigned long user = 0, system = 0;
    if (fgets(line, sizeof line, file) != NULL) {
        const char *after_name = strrchr(line, ')');
        if (after_name != NULL)
            sscanf(after_name, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %lu %lu", &user, &system);
    }
    fclose(file);
    used_ns += (user + system) * (1000000000ull / sysconf(_SC_CLK_TCK));
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", pid, pid);
    file = fopen(path, "r");
    int child;
    while (file != NULL && fscanf(file, "%d", &child) == 1) used_ns += family_cpu_ns(child);
    if (file != NULL) fclose(file);
    return used_ns;
}

// Items

static void prepare_items(void) {
    u64 random = 88172645463325252ull;  // xorshift64
    for (size_t i = 0; i < sizeof filling; i++) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        filling[i] = (char)random;
    }
    // As many between 16 and 32 bytes as between 2 and 4 KiB.
    for (int i = 0; i < SIZES; i++) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        double share = (double)(random >> 11) / (double)(1ull << 53);
        sizes[i] = (u64)(size_min * pow((double)size_max / size_min, share) + 0.5);
    }
}

static size_t size_of(u64 number) { return sizes[number % SIZES]; }

static const char *make_item(u64 number, size_t *bytes) {
    static char item[ITEM_BYTES_MAX];
    static const char digits[] = "0123456789abcdef";
    *bytes = size_of(number);
    for (int i = 0; i < ITEM_BYTES_MIN; i++) item[i] = digits[number >> (60 - 4 * i) & 15];
    memcpy(item + ITEM_BYTES_MIN, filling + number % FILLINGS, *bytes - ITEM_BYTES_MIN);
    return item;
}

static void item_arrived(const char *item, size_t bytes, const struct request *asked) {
    u64 number = 0;
    for (int i = 0; i < ITEM_BYTES_MIN && bytes >= ITEM_BYTES_MIN; i++) {
        char c = item[i];
        unsigned digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : 16;
        if (digit == 16) {
            fault("an item that is not ours");
            return;
        }
        number = number << 4 | digit;
    }
    if (bytes < ITEM_BYTES_MIN || number >= (key_count ? key_count : put_count) || bytes != size_of(number) ||
        memcmp(item + ITEM_BYTES_MIN, filling + number % FILLINGS, bytes - ITEM_BYTES_MIN) != 0) {
        fault("an item is damaged, or not ours");
    } else if (protocol->keeps) {
        if (number != asked->number) fault("item %lu came instead of %lu", number, asked->number);
    } else if (taken[number] || number < first_number) {
        fault("item %lu came again", number);
    } else {
        taken[number] = true;
        taken_count++;
    }
}

// Sending

static void *room(struct connection *c, size_t bytes) {
    if (c->out_bytes + bytes > c->out_room) {
        c->out_room = (c->out_bytes + bytes) * 2;
        c->out = grown(c->out, c->out_room);
    }
    return c->out + c->out_bytes;
}

static void add(struct connection *c, const void *data, size_t bytes) {
    memcpy(room(c, bytes), data, bytes);
    c->out_bytes += bytes;
}

static void say(struct connection *c, const char *format, ...) {
    va_list values;
    va_start(values, format);
    char line[512];
    int bytes = vsnprintf(line, sizeof line, format, values);
    va_end(values);
    add(c, line, bytes);
}

static const char *name_of(u64 queue) {
    static char name[128];
    if (queue_count == 1 && !protocol->keeps) return queue_name;
    snprintf(name, sizeof name, "%s_%lu", queue_name, queue);
    return name;
}

static void expect(struct connection *c, enum kind kind, u64 number) {
    if (c->next - c->first == c->ring) give_up("more requests than expected");
    c->requests[c->next++ & (c->ring - 1)] = (struct request){kind, now_ns, number, 0};
}

static void send_out(struct connection *c) {
    while (c->out_at < c->out_bytes) {
        ssize_t sent = send(c->fd, c->out + c->out_at, c->out_bytes - c->out_at, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) break;
        if (sent < 0) give_up("connection lost: %s", strerror(errno));
        c->out_at += sent;
    }
    bool has_more = c->out_at < c->out_bytes;
    if (!has_more) c->out_at = c->out_bytes = 0;
    if (has_more != c->wants_to_send) {
        struct epoll_event event = {.events = EPOLLIN | (has_more ? EPOLLOUT : 0), .data.ptr = c};
        epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &event);
        c->wants_to_send = has_more;
    }
}

// kestreld, Kestrel and memcached

static void memcache_put(struct connection *c, u64 queue, const char *item, size_t bytes) {
    say(c, "set %s 0 %lu %zu\r\n", name_of(queue), expires_at_s, bytes);
    add(c, item, bytes);
    add(c, "\r\n", 2);
}

static void memcache_take(struct connection *c, u64 queue, bool reliable) {
    if (reliable && work == LEASED)
        say(c, "gets %s/open/lease=%d\r\n", name_of(queue), LEASE_MS);
    else
        say(c, "get %s%s\r\n", name_of(queue), !reliable ? "" : work == OPENED ? "/open" : "/close/open");
}

static void memcache_ack(struct connection *c, const struct answer *answer) {
    if (phase == DRAIN) return;
    if (work == LEASED)
        snprintf(c->ack, sizeof c->ack, "delete %s/%lu\r\n", name_of(0), answer->id);
    else if (work == OPENED)
        snprintf(c->ack, sizeof c->ack, "get %s/close\r\n", name_of(0));
}

static const char *end_of_line(const char *at, size_t bytes) {
    const char *end = memchr(at, '\n', bytes);
    return end == NULL ? NULL : end + 1;
}

// The data that follow a line which ends at `line`, and then `tail` more bytes.
static enum meaning item_after(const char *at, size_t bytes, const char *line, size_t data, size_t tail,
                               struct answer *answer) {
    answer->item = line;
    answer->item_bytes = data;
    answer->bytes = (line - at) + data + tail;
    return answer->bytes <= bytes ? ITEM : INCOMPLETE;
}

static const char *word_before(const char *end, const char *first) {
    while (end[-1] != ' ' && end > first) end--;
    return end;
}

static enum meaning memcache_read(enum kind kind, const char *at, size_t bytes, struct answer *answer) {
    const char *line = end_of_line(at, bytes);
    if (line == NULL) return INCOMPLETE;
    answer->bytes = line - at;
    if (kind == OF_PUT) return answer->bytes == 8 && memcmp(at, "STORED\r\n", 8) == 0 ? OK : REFUSED;
    if (kind == OF_ACK && work == LEASED) return answer->bytes == 9 && memcmp(at, "DELETED\r\n", 9) == 0 ? OK : REFUSED;
    if (answer->bytes == 5 && memcmp(at, "END\r\n", 5) == 0) return EMPTY;
    if (memcmp(at, "VALUE ", answer->bytes < 6 ? answer->bytes : 6) != 0) return REFUSED;
    const char *size = word_before(line - 2, at);
    if (kind == OF_TAKE && work == LEASED && phase != DRAIN) {
        answer->id = strtoul(size, NULL, 10);
        size = word_before(size - 1, at);
    }
    enum meaning meaning = item_after(at, bytes, line, strtoul(size, NULL, 10), 7, answer);
    if (meaning == ITEM && memcmp(answer->item + answer->item_bytes, "\r\nEND\r\n", 7) != 0) return REFUSED;
    return meaning;
}

// redis: LPUSH and RPOP; a reliable take is RPOPLPUSH, and RPOP once it is done

static void redis_put(struct connection *c, u64 queue, const char *item, size_t bytes) {
    const char *name = name_of(queue);
    say(c, "*3\r\n$5\r\nLPUSH\r\n$%zu\r\n%s\r\n$%zu\r\n", strlen(name), name, bytes);
    add(c, item, bytes);
    add(c, "\r\n", 2);
}

// Where a client has the items that it has taken and not acknowledged.
static const char *own_list(const struct connection *c) {
    static char name[100];
    snprintf(name, sizeof name, "%.80s_of_%u", queue_name, c->index);
    return name;
}

static void redis_take(struct connection *c, u64 queue, bool reliable) {
    const char *name = name_of(queue), *own = own_list(c);
    if (reliable)
        say(c, "*3\r\n$9\r\nRPOPLPUSH\r\n$%zu\r\n%s\r\n$%zu\r\n%s\r\n", strlen(name), name, strlen(own), own);
    else
        say(c, "*2\r\n$4\r\nRPOP\r\n$%zu\r\n%s\r\n", strlen(name), name);
}

static void redis_ack(struct connection *c, const struct answer *answer) {
    (void)answer;
    if (work != RELIABLE || phase == DRAIN) return;
    const char *own = own_list(c);
    snprintf(c->ack, sizeof c->ack, "*2\r\n$4\r\nRPOP\r\n$%zu\r\n%s\r\n", strlen(own), own);
}

static enum meaning redis_read(enum kind kind, const char *at, size_t bytes, struct answer *answer) {
    const char *line = end_of_line(at, bytes);
    if (line == NULL) return INCOMPLETE;
    answer->bytes = line - at;
    if (kind == OF_PUT) return *at == ':' ? OK : REFUSED;
    if (*at != '$') return REFUSED;
    if (at[1] == '-') return EMPTY;
    return item_after(at, bytes, line, strtoul(at + 1, NULL, 10), 2, answer);
}

// beanstalkd: put; every take is reserve, and delete once it is done

static void beanstalk_put(struct connection *c, u64 queue, const char *item, size_t bytes) {
    (void)queue;  // chosen when the connection is made
    say(c, "put 0 0 120 %zu\r\n", bytes);
    add(c, item, bytes);
    add(c, "\r\n", 2);
}

static void beanstalk_take(struct connection *c, u64 queue, bool reliable) {
    (void)queue, (void)reliable;
    say(c, "reserve-with-timeout 0\r\n");
}

static void beanstalk_ack(struct connection *c, const struct answer *answer) {
    snprintf(c->ack, sizeof c->ack, "delete %lu\r\n", answer->id);
}

static enum meaning beanstalk_read(enum kind kind, const char *at, size_t bytes, struct answer *answer) {
    const char *line = end_of_line(at, bytes);
    if (line == NULL) return INCOMPLETE;
    answer->bytes = line - at;
    switch (kind) {
    case OF_PUT: return strncmp(at, "INSERTED ", 9) == 0 ? OK : REFUSED;
    case OF_ACK: return strncmp(at, "DELETED\r", 8) == 0 ? OK : REFUSED;
    case OF_OTHER: return strncmp(at, "USING ", 6) == 0 || strncmp(at, "WATCHING ", 9) == 0 ? OK : REFUSED;
    case OF_TAKE: break;
    }
    if (strncmp(at, "TIMED_OUT\r", 10) == 0) return EMPTY;
    if (strncmp(at, "RESERVED ", 9) != 0) return REFUSED;
    char *after_id;
    answer->id = strtoul(at + 9, &after_id, 10);
    return item_after(at, bytes, line, strtoul(after_id, NULL, 10), 2, answer);
}

// Disque: ADDJOB and GETJOB; every take is over with ACKJOB

static void disque_put(struct connection *c, u64 queue, const char *item, size_t bytes) {
    const char *name = name_of(queue);
    say(c, "*4\r\n$6\r\nADDJOB\r\n$%zu\r\n%s\r\n$%zu\r\n", strlen(name), name, bytes);
    add(c, item, bytes);
    add(c, "\r\n$1\r\n0\r\n", 9);
}

static void disque_take(struct connection *c, u64 queue, bool reliable) {
    (void)reliable;
    const char *name = name_of(queue);
    // Only a queue that is being emptied may have no job: GETJOB waits for one.
    const char *head = phase == DRAIN ? "*4\r\n$6\r\nGETJOB\r\n$6\r\nNOHANG" : "*3\r\n$6\r\nGETJOB";
    say(c, "%s\r\n$4\r\nFROM\r\n$%zu\r\n%s\r\n", head, strlen(name), name);
}

static void disque_ack(struct connection *c, const struct answer *answer) {
    snprintf(c->ack, sizeof c->ack, "*2\r\n$6\r\nACKJOB\r\n$40\r\n%.40s\r\n", answer->job_id);
}

static enum meaning disque_read(enum kind kind, const char *at, size_t bytes, struct answer *answer) {
    const char *line = end_of_line(at, bytes);
    if (line == NULL) return INCOMPLETE;
    answer->bytes = line - at;
    if (kind == OF_PUT) return strncmp(at, "+D-", 3) == 0 ? OK : REFUSED;
    if (kind == OF_ACK) return strncmp(at, ":1\r", 3) == 0 ? OK : REFUSED;
    if (strncmp(at, "*-1\r", 4) == 0) return EMPTY;
    if (strncmp(at, "*1\r", 3) != 0) return REFUSED;
    const char *before = line;
    for (int number = 0; number < 6; number++) {  // *3, the queue and the id, each behind its length, that of the body
        before = line;
        line = end_of_line(line, at + bytes - line);
        if (line == NULL) return INCOMPLETE;
        if (number == 4) answer->job_id = before;
    }
    return item_after(at, bytes, line, strtoul(before + 1, NULL, 10), 2, answer);
}

static const struct protocol protocols[] = {
    {"kestrel", false, false, memcache_put, memcache_take, memcache_ack, memcache_read},
    {"memcached", true, false, memcache_put, memcache_take, NULL, memcache_read},
    {"redis", false, false, redis_put, redis_take, redis_ack, redis_read},
    {"beanstalkd", false, false, beanstalk_put, beanstalk_take, beanstalk_ack, beanstalk_read},
    {"disque", false, true, disque_put, disque_take, disque_ack, disque_read},
};

static bool is_beanstalk(void) { return protocol->put == beanstalk_put; }

// What the clients do

// Whether items are taken and confirmed apart; none are put meanwhile.
static bool confirms(void) { return work == RELIABLE || work == OPENED || work == LEASED; }

static u64 queue_of(const struct connection *c) {
    return protocol->keeps ? c->index : (c->index + c->turn * client_count) % queue_count;
}

static u64 random_key(void) {
    static u64 random = 88172645463325252ull;  // xorshift64
    random ^= random << 13, random ^= random >> 7, random ^= random << 17;
    return random % key_count;
}

static void put_value(struct connection *c, u64 key) {
    size_t bytes;
    const char *value = make_item(key, &bytes);
    expect(c, OF_PUT, key);
    protocol->put(c, key, value, bytes);
    c->in_flight++;
}

static void take_value(struct connection *c, u64 key) {
    expect(c, OF_TAKE, key);
    protocol->take(c, key, false);
    c->in_flight++;
}

static void do_one_with_a_key(struct connection *c) {
    bool puts = work == PUT || (work == PUT_TAKE && !c->takes_next);
    c->takes_next = puts;
    if (puts)
        put_value(c, random_key());
    else
        take_value(c, random_key());
}

static void put(struct connection *c, u64 queue) {
    if (put_count == taken_room) {
        u64 old = taken_room;
        taken_room = taken_room ? taken_room * 2 : 1 << 16;
        taken = grown(taken, taken_room * sizeof *taken);
        memset(taken + old, 0, (taken_room - old) * sizeof *taken);
    }
    size_t bytes;
    const char *item = make_item(put_count, &bytes);
    expect(c, OF_PUT, put_count);
    protocol->put(c, queue, item, bytes);
    c->last_put = put_count++;
    c->in_flight++;
}

// `ends`: the request of the take that is over with it, NULL = it is over already.
static void send_ack(struct connection *c, const struct request *ends, size_t item_bytes) {
    expect(c, OF_ACK, 0);
    if (ends != NULL) {
        struct request *ack = &c->requests[(c->next - 1) & (c->ring - 1)];
        ack->begun_ns = ends->begun_ns;
        ack->item_bytes = item_bytes;
    }
    add(c, c->ack, strlen(c->ack));
    c->ack[0] = 0;
}

static void take(struct connection *c, u64 queue, bool reliable) {
    if (c->ack[0]) send_ack(c, NULL, 0);
    expect(c, OF_TAKE, c->last_put);
    protocol->take(c, queue, reliable);
    c->in_flight++;
}

static void do_one(struct connection *c) {
    if (key_count) {
        do_one_with_a_key(c);
        return;
    }
    u64 queue = queue_of(c);
    if (work == PUT) {
        put(c, queue);
        c->turn++;
    } else if (confirms()) {
        take(c, queue, true);
    } else if (!c->takes_next) {
        put(c, queue);
        c->takes_next = true;
    } else {
        take(c, queue, false);
        c->takes_next = false;
        c->turn++;
    }
}

// Confirm what is open, and take what a pair's put has put.
static void finish(struct connection *c) {
    if (c->is_finished) return;
    c->is_finished = true;
    if (c->takes_next && !key_count) do_one(c);
    if (c->ack[0]) {
        send_ack(c, NULL, 0);
    } else if (work == RELIABLE && protocol->ack == memcache_ack) {
        expect(c, OF_OTHER, 0);
        say(c, "get %s/close\r\n", name_of(0));
    }
}

static unsigned fill_depth(void) {
    size_t items = FILL_BYTES / size_max;
    return items < 1 ? 1 : items > FILL_ITEMS ? FILL_ITEMS : items;
}

static void go_on(struct connection *c) {
    switch (phase) {
    case FILL:
        while (c->in_flight < fill_depth() && put_count < fill_count) {
            if (key_count)
                put_value(c, put_count++ % key_count);
            else
                put(c, put_count % queue_count);
        }
        break;
    case WORK:
        while (c->in_flight < depth && !c->is_dry) do_one(c);
        break;
    case FINISH:
        finish(c);
        break;
    case DRAIN:
        while (!c->is_dry && c->drains < queue_count && c->in_flight < (queue_count == 1 ? fill_depth() : 1))
            take(c, c->drains, false);
        break;
    }
    send_out(c);
}

static void count(const struct request *request, size_t item_bytes) {
    if (!measuring) return;
    if (latency_count == latency_room) {
        latency_room = latency_room ? latency_room * 2 : 1 << 18;
        latencies_ns = grown(latencies_ns, latency_room * sizeof *latencies_ns);
    }
    u64 took_ns = now_ns - request->begun_ns;
    latencies_ns[latency_count++] = took_ns < UINT32_MAX ? took_ns : UINT32_MAX;
    measured_bytes += item_bytes;
    if (request->kind == OF_PUT)
        measured_puts++;
    else if (request->kind == OF_ACK && protocol->counts_acks)
        measured_acks++;
    else
        measured_takes++;
}

static void found_empty(struct connection *c) {
    if (phase != DRAIN) {
        if (!confirms()) fault(key_count ? "a key had no value" : "a queue was empty though it had an item");
        c->is_dry = true;
    } else if (queue_count == 1) {
        c->is_dry = true;
    } else if (c->in_flight == 0) {
        c->drains += client_count;
    }
}

static void answered(struct connection *c, const struct request *request, enum meaning meaning,
                     const struct answer *answer, const char *at) {
    if (meaning == REFUSED) {
        fault("refused: %.*s", (int)strcspn(at, "\r\n"), at);
        if (request->kind == OF_PUT || request->kind == OF_TAKE || request->item_bytes) c->in_flight--;
        return;
    }
    switch (request->kind) {
    case OF_PUT:
        c->in_flight--;
        count(request, size_of(request->number));
        break;
    case OF_TAKE:
        if (meaning == EMPTY) {
            c->in_flight--;
            found_empty(c);
            break;
        }
        item_arrived(answer->item, answer->item_bytes, request);
        if (protocol->ack != NULL) protocol->ack(c, answer);
        if (c->ack[0] && !(acks_join && phase == WORK)) {
            struct request ends = *request;
            if (protocol->counts_acks) {
                count(request, answer->item_bytes);
                ends.begun_ns = now_ns;
            }
            send_ack(c, &ends, answer->item_bytes);
        } else {
            c->in_flight--;
            count(request, answer->item_bytes);
        }
        break;
    case OF_ACK:
        if (request->item_bytes) {
            c->in_flight--;
            count(request, request->item_bytes);
        }
        break;
    case OF_OTHER:
        break;
    }
}

static void receive(struct connection *c) {
    if (c->in_room - c->in_bytes < RECEIVE_BYTES) {
        c->in_room = c->in_bytes + 2 * RECEIVE_BYTES;
        c->in = grown(c->in, c->in_room);
    }
    ssize_t got = recv(c->fd, c->in + c->in_bytes, c->in_room - c->in_bytes, 0);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) give_up("the server closed a connection%s%s", got < 0 ? ": " : "", got < 0 ? strerror(errno) : "");
    heard_ns = read_clock();
    c->in_bytes += got;
    size_t at = 0;
    while (c->first != c->next && at < c->in_bytes) {
        struct request request = c->requests[c->first & (c->ring - 1)];
        struct answer answer = {0};
        enum meaning meaning = protocol->read(request.kind, c->in + at, c->in_bytes - at, &answer);
        if (meaning == INCOMPLETE) break;
        c->first++;
        answered(c, &request, meaning, &answer, c->in + at);
        at += answer.bytes;
    }
    if (c->first == c->next && at < c->in_bytes) give_up("the server answers without being asked");
    memmove(c->in, c->in + at, c->in_bytes - at);
    c->in_bytes -= at;
    go_on(c);
}

static void poll_once(int wait_ms) {
    struct epoll_event events[EVENTS];
    int ready = epoll_wait(poller, events, EVENTS, wait_ms);
    read_clock();
    for (int i = 0; i < ready; i++) {
        struct connection *c = events[i].data.ptr;
        if (events[i].events & EPOLLOUT) send_out(c);
        if (events[i].events & ~EPOLLOUT) receive(c);
    }
    if (now_ns > heard_ns + PATIENCE_NS) give_up("no answer for a minute");
}

static bool all_quiet(void) {
    for (unsigned i = 0; i < client_count; i++)
        if (connections[i].first != connections[i].next) return false;
    return true;
}

static void begin(enum phase next) {
    phase = next;
    heard_ns = read_clock();
    for (unsigned i = 0; i < client_count; i++) connections[i].is_dry = false;
    for (unsigned i = 0; i < client_count; i++) go_on(&connections[i]);
}

static void run_until(u64 until_ns) {
    while (!(confirms() && all_quiet())) {
        bool is_late = read_clock() >= until_ns;
        bool is_enough = !measuring || measured_puts + measured_takes >= operations_min;
        if (is_late && (is_enough || all_quiet())) break;
        u64 left_ms = is_late ? 100 : (until_ns - now_ns) / 1000000;
        poll_once(left_ms < 100 ? left_ms : 100);
    }
}

static void run_until_quiet(void) {
    while (!all_quiet()) poll_once(1000);
}

// Connections

static int connect_one(void) {
    struct sockaddr_in server = {.sin_family = AF_INET, .sin_port = htons(port)};
    server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    if (fd < 0 || connect(fd, (struct sockaddr *)&server, sizeof server) != 0)
        give_up("cannot connect to port %u: %s", port, strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

// Connections that do nothing any more, once the server has answered them.
static void connect_idle(void) {
    for (unsigned i = 0; i < idle_count; i++) {
        char answer[64];
        int fd = connect_one();
        if (send(fd, "get idle\r\n", 10, 0) != 10 || recv(fd, answer, sizeof answer, 0) != 5 ||
            memcmp(answer, "END\r\n", 5) != 0)
            give_up("an idle connection was not answered");
    }
}

static void connect_clients(void) {
    poller = epoll_create1(0);
    connections = grown(NULL, client_count * sizeof *connections);
    memset(connections, 0, client_count * sizeof *connections);
    for (unsigned i = 0; i < client_count; i++) {
        struct connection *c = &connections[i];
        c->fd = connect_one();
        c->index = i;
        c->drains = i;
        c->ring = 4 * FILL_ITEMS;
        while (c->ring < 4 * depth) c->ring *= 2;
        c->requests = grown(NULL, c->ring * sizeof *c->requests);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &event);
        if (is_beanstalk()) {
            const char *name = name_of(i % queue_count);
            say(c, "use %s\r\nwatch %s\r\nignore default\r\n", name, name);
            for (int answers = 0; answers < 3; answers++) expect(c, OF_OTHER, 0);
        }
        fcntl(c->fd, F_SETFL, O_NONBLOCK);
    }
}

// Results

static int by_time(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

// The nearest rank: the least time that so many percent did not exceed.
static double percentile_us(double percent) {
    if (latency_count == 0) return 0;
    u64 rank = (u64)ceil(latency_count * percent / 100);
    return latencies_ns[rank ? rank - 1 : 0] / 1e3;
}

static void print_text(const char *text) {
    putchar('"');
    for (; *text; text++) {
        unsigned char c = *text;
        if (c == '"' || c == '\\' || c < 32 || c > 126)
            printf("\\u%04x", c);
        else
            putchar(c);
    }
    putchar('"');
}

static void print_result(u64 wall_ns, u64 server_ns, u64 own_ns) {
    qsort(latencies_ns, latency_count, sizeof *latencies_ns, by_time);
    u64 operations = measured_puts + measured_takes + measured_acks;
    printf("{\"operations\": %lu, \"puts\": %lu, \"takes\": %lu, \"acks\": %lu, ", operations, measured_puts,
           measured_takes, measured_acks);
    printf("\"seconds\": %.4f, \"ops_s\": %.1f, ", wall_ns / 1e9, wall_ns ? operations / (wall_ns / 1e9) : 0);
    printf("\"server_cpu_us_op\": %.4f, \"client_cpu_percent\": %.0f, \"item_bytes\": %.1f, ",
           operations ? server_ns / 1e3 / operations : 0, wall_ns ? own_ns * 100.0 / wall_ns : 0,
           operations ? (double)measured_bytes / operations : 0);
    printf("\"p50_us\": %.1f, \"p90_us\": %.1f, \"p99_us\": %.1f, ", percentile_us(50), percentile_us(90),
           percentile_us(99));
    printf("\"p99_9_us\": %.1f, \"max_us\": %.1f, ", percentile_us(99.9), percentile_us(100));
    printf("\"faults\": %lu, \"first_fault\": ", faults);
    print_text(first_fault);
    printf("}\n");
}

static void read_options(int count, char **words) {
    static const struct option options[] = {
        {"protocol", 1, 0, 'P'}, {"port", 1, 0, 'p'},      {"pid", 1, 0, 'i'},     {"queue", 1, 0, 'q'},
        {"queues", 1, 0, 'Q'},   {"work", 1, 0, 'w'},      {"clients", 1, 0, 'c'}, {"depth", 1, 0, 'd'},
        {"size", 1, 0, 's'},     {"seconds", 1, 0, 't'},   {"warm", 1, 0, 'W'},    {"fill", 1, 0, 'f'},
        {"idle", 1, 0, 'I'},     {"numbers", 1, 0, 'n'},   {"leave", 0, 0, 'l'},   {"join-acks", 0, 0, 'j'},
        {"at-least", 1, 0, 'm'}, {"keys", 1, 0, 'k'},      {"expires-at", 1, 0, 'e'}, {0, 0, 0, 0},
    };
    static const char *const works[] = {"put", "take", "put+take", "reliable", "opened", "leased", "drain"};
    int option, work_number = -1;
    while ((option = getopt_long(count, words, "", options, NULL)) != -1) {
        switch (option) {
        case 'P':
            for (size_t i = 0; i < sizeof protocols / sizeof *protocols; i++)
                if (strcmp(optarg, protocols[i].name) == 0) protocol = &protocols[i];
            break;
        case 'p': port = atoi(optarg); break;
        case 'i': server_pid = atoi(optarg); break;
        case 'q': queue_name = optarg; break;
        case 'Q': queue_count = strtoul(optarg, NULL, 10); break;
        case 'w':
            for (int i = 0; i < 7; i++)
                if (strcmp(optarg, works[i]) == 0) work_number = i;
            break;
        case 'c': client_count = atoi(optarg); break;
        case 'd': depth = atoi(optarg); break;
        case 's':
            if (sscanf(optarg, "%zu-%zu", &size_min, &size_max) == 1) size_max = size_min;
            break;
        case 't': seconds = atof(optarg); break;
        case 'W': warm_seconds = atof(optarg); break;
        case 'f': fill_count = strtoul(optarg, NULL, 10); break;
        case 'I': idle_count = atoi(optarg); break;
        case 'n':
            if (sscanf(optarg, "%lu-%lu", &first_number, &last_number) != 2) give_up("--numbers FIRST-LAST");
            break;
        case 'm': operations_min = strtoul(optarg, NULL, 10); break;
        case 'k': key_count = strtoul(optarg, NULL, 10); break;
        case 'e': expires_at_s = strtoul(optarg, NULL, 10); break;
        case 'l': leaves = true; break;
        case 'j': acks_join = true; break;
        default: exit(2);
        }
    }
    if (protocol == NULL || port == 0 || work_number < 0 || client_count < 1 || depth < 1 || queue_count < 1)
        give_up("needs --protocol, --port and --work put|take|put+take|reliable|opened|leased|drain");
    if (size_min < ITEM_BYTES_MIN || size_max < size_min || size_max > ITEM_BYTES_MAX)
        give_up("--size is from %d to %d", ITEM_BYTES_MIN, ITEM_BYTES_MAX);
    work = (enum work)work_number;
    if ((work == OPENED || work == LEASED) && strcmp(protocol->name, "kestrel") != 0)
        give_up("only kestrel has this work");
    if (key_count && !protocol->keeps) give_up("only memcached has --keys");
    if (work == TAKE && !key_count) give_up("--work=take needs --keys");
    if (is_beanstalk() && queue_count > 1) give_up("with beanstalkd it uses one queue");
    if (warm_seconds < 0) warm_seconds = seconds / 10;
}

int main(int count, char **words) {
    read_options(count, words);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    prepare_items();
    connect_idle();
    connect_clients();

    begin(FILL);
    run_until_quiet();

    u64 wall_ns = 0, server_ns = 0, own_ns = 0;
    if (work != DRAIN_ONLY && seconds > 0) {
        begin(WORK);
        run_until(now_ns + (u64)(warm_seconds * 1e9));
        measuring = true;
        u64 begun_ns = read_clock();
        u64 server_begun_ns = server_pid ? family_cpu_ns(server_pid) : 0;
        u64 own_begun_ns = cpu_ns_of(getpid());
        run_until(begun_ns + (u64)(seconds * 1e9));
        own_ns = cpu_ns_of(getpid()) - own_begun_ns;
        server_ns = server_pid ? family_cpu_ns(server_pid) - server_begun_ns : 0;
        wall_ns = read_clock() - begun_ns;
        measuring = false;
        begin(FINISH);
        run_until_quiet();
    }
    if (work == DRAIN_ONLY) {
        // Another run has put them.
        put_count = last_number + 1;
        taken_count = first_number;
        taken_room = put_count;
        taken = grown(NULL, taken_room * sizeof *taken);
        memset(taken, 0, taken_room * sizeof *taken);
    }
    if (!leaves && !protocol->keeps) {
        begin(DRAIN);
        run_until_quiet();
        if (taken_count != put_count) fault("%ld of %lu items are lost", (long)(put_count - taken_count), put_count);
    }
    print_result(wall_ns, server_ns, own_ns);
    return faults ? 1 : 0;
}

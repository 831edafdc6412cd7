// The trace mode's findings: which accesses of a kernel are wrong, and why. Part of trace.cpp, which see.
#pragma once

#include <dlfcn.h>
#include <sys/mman.h>

#include <map>
#include <string>
#include <tuple>
#include <unordered_map>

#include "trace_count.h"

namespace cuda_host::trace {
namespace {

enum class Role { input, output, both };

constexpr Address reserved = 1ull << 36;      // addresses around the arrays: an index that is far off lands here too
constexpr Address margin = 1ull << 16;        // bytes that exist before and after each array

// ---- the threads of the running block ----

std::vector<Node> nodes;
std::unordered_map<Address, unsigned> node_of;
struct { Address key; unsigned node; } recent[4096];  // of node_of's entries, for speed

// Where a thread is: `pc` as reached by a chain of calls.
unsigned intern(unsigned context, const void* pc) {
    const Address key = static_cast<Address>(context) << 48 ^ reinterpret_cast<Address>(pc);
    auto& cached = recent[(key ^ key >> 12 ^ key >> 48) % 4096];
    if (cached.key != key) {
        const auto [found, is_new] = node_of.try_emplace(key, static_cast<unsigned>(nodes.size()));
        if (is_new) nodes.push_back({context, pc, {}});
        cached = {key, found->second};
    }
    return cached.node;
}

std::vector<Event> logs[max_threads];
size_t logged = 0, most_logged = 0;  // events of one block between two barriers
unsigned context[max_threads], last_node[max_threads];
const Launch* running = nullptr;
unsigned earlier_blocks = 0, blocks_of_launch = 0;
unsigned blocks_before = 0;  // of all launches before trace_begin
unsigned number = 0;   // the running block's, from 1 on, among those of all launches of this process
unsigned threads = 0;  // of the running block
std::string launches;  // JSON

const Block* scheduler = nullptr;

unsigned current() { return scheduler->current(); }

void log(Address address, unsigned node, Kind kind, Space space, size_t size) {
    const unsigned thread = current();
    last_node[thread] = node;
    logs[thread].push_back({address, node, kind, space, static_cast<unsigned char>(size)});
    if (++logged <= most_logged) return;
    in_kernel = false;  // fail() is compiled with the kernel, and would log itself
    here.scheduler->fail(cudaErrorLaunchFailure,
                         "a block makes more accesses between two barriers than the trace can hold. Trace a smaller size; "
                         "or its loop waits for what another thread or block has yet to write, and never ends here");
}

std::string name_of(unsigned thread, unsigned block_number) {
    const dim3 b = running->block, g = running->grid;
    const unsigned in_block = block_number - 1 - earlier_blocks;
    char text[128];
    snprintf(text, sizeof text, "thread (%u,%u,%u) of block (%u,%u,%u)", thread % b.x, thread / b.x % b.y,
             thread / b.x / b.y, in_block % g.x, in_block / g.x % g.y, in_block / g.x / g.y);
    return text;
}

// ---- order: which accesses are certain to come one after the other ----

struct Access {      // block 0: none yet
    unsigned block;  // numbered from 1 on, through all launches
    unsigned stamp;  // how many of the block's barriers and warp barriers had been passed
    unsigned node;
    unsigned time;   // how many accesses had been made before, in all
    unsigned short thread;
};

struct Atomic : Access {  // on global memory
    Address address;
    unsigned barrier;     // the stamp of the block's last barrier
};

unsigned stamp, last_barrier;            // of the running block
unsigned known[max_threads][warp_size];  // thread t sees what lane l of its warp did before this stamp
std::vector<Atomic> atomics;             // of the running launch
std::unordered_map<Address, std::vector<size_t>> atomics_at;
std::unordered_map<unsigned, std::vector<size_t>> atomics_of;  // a block
unsigned now = 0;                        // the time

// Whether atomics order `before` before the running thread's present access: its thread, or its block after a barrier,
// then used an atomic on an address, and later the running thread, or its block before a barrier, did; or so by way of
// further blocks.
bool is_ordered_by_atomics(const Access& before, unsigned thread) {
    struct Place {
        unsigned block, thread, barrier, time;
    };
    std::vector<Place> open{{number, thread, last_barrier, now}};
    std::unordered_map<Address, size_t> searched;  // how many of the atomics at an address
    while (!open.empty()) {
        const Place at = open.back();
        open.pop_back();
        for (const size_t q : atomics_of[at.block]) {
            const Atomic& acquired = atomics[q];
            if (acquired.time > at.time) break;
            if (acquired.thread != at.thread && acquired.stamp >= at.barrier) continue;
            const std::vector<size_t>& all = atomics_at[acquired.address];
            for (size_t& k = searched[acquired.address]; k < all.size() && all[k] < q; ++k) {
                const Atomic& released = atomics[all[k]];
                if (released.block == before.block &&
                    (released.thread == before.thread ? released.time > before.time : before.stamp < released.barrier))
                    return true;
                open.push_back({released.block, released.thread, released.barrier, released.time});
            }
        }
    }
    return false;
}

// Whether what `before` did is certain to be done when the running thread comes to its present access.
bool is_ordered(const Access& before, unsigned thread) {
    if (before.block <= earlier_blocks) return true;  // of an earlier launch
    if (before.block != number) return is_ordered_by_atomics(before, thread);
    if (before.thread == thread || before.stamp < last_barrier) return true;
    if (before.thread / warp_size == thread / warp_size && before.stamp < known[thread][before.thread % warp_size])
        return true;
    return is_ordered_by_atomics(before, thread);
}

// The last accesses of one kind to an element: the last of all; the last by another warp or, failing that, thread of
// the same block; the last by another block. Whoever comes next conflicts with one of them if it conflicts with any.
// (Not always under __syncwarp with partial masks, which order some lanes of a warp and not others.)
struct Recent {
    Access last, other, elsewhere;

    void add(const Access& access) {
        if (last.block && last.block != access.block) {
            elsewhere = last;
            other = {};
        } else if (last.block && last.thread != access.thread) {
            const bool is_spent =
                other.block != access.block || other.stamp < last_barrier || other.thread == access.thread;
            if (is_spent || last.thread / warp_size != access.thread / warp_size) other = last;
        }
        last = access;
    }
};

// ---- arrays ----

struct Array {
    std::string name;
    Address at;
    size_t bytes, item;  // an item is what one record stands for: an element, or a byte of shared memory
    Role role;
    Space space;
    Access* stores;           // the last one to each item
    Recent *loads, *updates;  // updates: atomics
};

std::vector<Array> arrays, shared_arrays;
Address arena = 0, arena_end = 0, shared_begin = 0;
Access shared_stores[shared_capacity];
Recent shared_loads[shared_capacity], shared_updates[shared_capacity];

const Array* array_at(const std::vector<Array>& among, Address address, size_t size) {
    for (const Array& a : among)
        if (address >= a.at && address + size <= a.at + a.bytes) return &a;
    return nullptr;
}

const Array* nearest(const std::vector<Array>& among, Address address) {
    const auto distance = [&](const Array& a) {
        return address < a.at ? a.at - address : address < a.at + a.bytes ? 0 : address - (a.at + a.bytes) + 1;
    };
    const Array* best = nullptr;
    for (const Array& a : among)
        if (!best || distance(a) < distance(*best)) best = &a;
    return best;
}

// ---- findings ----

struct Finding {
    long long count = 0;
    unsigned last_access = 0;
    std::string text;  // further fields of the JSON object
};
std::map<std::tuple<std::string, unsigned, unsigned>, Finding> findings;

std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') out += '\\';
        out += c < ' ' ? ' ' : c;
    }
    return out + "\"";
}
std::string triple(dim3 d) {
    return "[" + std::to_string(d.x) + "," + std::to_string(d.y) + "," + std::to_string(d.z) + "]";
}
std::string field(const char* name, const std::string& json) { return ",\"" + std::string(name) + "\":" + json; }
std::string field(const char* name, long long value) { return field(name, std::to_string(value)); }

// Counts a fault, once an access; of those alike, the first one gives the example that `fields` describes.
template <class F>
void found(const char* kind, unsigned node, unsigned other, F fields) {
    Finding& f = findings[{kind, node, other}];
    if (f.count == 0) f.text = fields();
    f.count += f.count == 0 || f.last_access != now;
    f.last_access = now;
}

std::string place(const Array* a, Address address, size_t size, unsigned thread) {
    std::string text = field("thread", quoted(name_of(thread, number))) + field("size", static_cast<long long>(size)) +
                       field("address", static_cast<long long>(address));
    if (a)
        text += field("array", quoted(a->name)) + field("offset", static_cast<long long>(address - a->at)) +
                field("bytes", static_cast<long long>(a->bytes)) + field("item", static_cast<long long>(a->item)) +
                field("shared", a->space);
    return text;
}

// ---- one access ----

const char* verb(Kind kind) { return kind == Kind::load ? "reads" : kind == Kind::store ? "writes" : "updates"; }

void race(const Array& a, Address address, size_t size, unsigned node, Kind kind, const Access& before,
          Kind before_kind) {
    const unsigned thread = current();
    const bool same_block = before.block == number;
    if (before.block == 0 || (a.space == shared_memory && !same_block)) return;
    if (is_ordered(before, thread)) return;
    const bool same_warp = same_block && before.thread / warp_size == thread / warp_size;
    found(!same_block ? "race between blocks" : same_warp ? "race in a warp" : "race", node, before.node, [&] {
        return place(&a, address, size, thread) + field("does", quoted(verb(kind))) +
               field("other_does", quoted(verb(before_kind))) +
               field("other_thread", quoted(name_of(before.thread, before.block)));
    });
}

void check_item(const Array& a, size_t item, Address address, size_t size, unsigned node, Kind kind) {
    const unsigned thread = current();
    const Access access{number, stamp, node, now, static_cast<unsigned short>(thread)};
    Access& store = a.stores[item];
    Recent &loads = a.loads[item], &updates = a.updates[item];
    const auto against = [&](const Access& before, Kind before_kind) {
        race(a, address, size, node, kind, before, before_kind);
    };
    against(store, Kind::store);
    if (kind != Kind::atomic)
        for (const Access& before : {updates.last, updates.other, updates.elsewhere}) against(before, Kind::atomic);
    if (kind != Kind::load)
        for (const Access& before : {loads.last, loads.other, loads.elsewhere}) against(before, Kind::load);
    if (kind == Kind::load) {
        const auto by_this_block = [](const Access& before) { return before.block == number; };
        const bool is_written = a.space == shared_memory ? by_this_block(store) || by_this_block(updates.last)
                                                         : a.role == Role::both || store.block || updates.last.block;
        const auto where = [&] { return place(&a, address, size, thread); };
        if (!is_written) found("read of what nothing has written yet", node, 0, where);
        loads.add(access);
    } else if (kind == Kind::atomic) {
        updates.add(access);
    } else {  // who comes after this store comes after all that it came after, and the rest has been reported
        store = access;
        if (loads.last.block) loads = {};
        if (updates.last.block) updates = {};
    }
}

void check(Address address, size_t size, unsigned node, Kind kind, Space space, bool natural) {
    const unsigned thread = current();
    const std::vector<Array>& among = space == global_memory ? arrays : shared_arrays;
    const Array* a = array_at(among, address, size);
    if (std::string& name = nodes[node].counts[space].array; name.empty() && !among.empty())
        name = (a ? a : nearest(among, address))->name;
    const auto where = [&] { return place(a ? a : nearest(among, address), address, size, thread) +
                                    field("does", quoted(verb(kind))); };
    if (natural && address % size) {
        found("misaligned access", node, 0, where);
        here.scheduler->fail(cudaErrorLaunchFailure, "misaligned access");
    }
    if (!a) {
        found("access out of bounds", node, 0, where);
        const Array* near = nearest(among, address);
        const bool is_near = near && address + margin >= near->at && address + size <= near->at + near->bytes + margin;
        if (space == global_memory && !is_near)
            here.scheduler->fail(cudaErrorLaunchFailure, "access far out of bounds");
        return;
    }
    if (a->role == Role::input) {
        if (kind != Kind::load) found("write to an input", node, 0, where);
        return;
    }
    for (size_t item = (address - a->at) / a->item; item * a->item < address - a->at + size; ++item)
        check_item(*a, item, address, size, node, kind);
}

struct {
    const void* pc;
    Address address;
    size_t size;
} elsewhere;  // the last access to neither arrays nor shared memory

// `natural`: the access is one instruction on a GPU too, which needs the alignment of its size.
void access(const void* pc, const void* pointer, size_t size, Kind kind, bool natural = true) {
    if (!in_kernel) return;
    const Address address = reinterpret_cast<Address>(pointer);
    Space space = global_memory;
    if (address - arena >= reserved) {
        space = shared_memory;
        if (address - shared_begin >= shared_capacity) {  // a local variable, or a pointer that has gone wild
            elsewhere = {pc, address, size};
            return;
        }
    }
    const unsigned node = intern(context[current()], pc);
    log(address, node, kind, space, size);
    ++now;
    check(address, size, node, kind, space, natural);
}

// A structure that is no vector type: a GPU moves it in pieces that its members' alignment allows. That is not known
// here; four bytes are right for members of int or float.
void access_in_pieces(const void* pc, const void* pointer, size_t size, Kind kind) {
    const Address address = reinterpret_cast<Address>(pointer);
    const size_t piece = (size | address) % 4 == 0 ? 4 : (size | address) % 2 == 0 ? 2 : 1;
    for (size_t done = 0; done < size; done += piece)
        access(pc, static_cast<const char*>(pointer) + done, piece, kind, false);
}

}  // namespace
}  // namespace cuda_host::trace

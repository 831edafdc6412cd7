// The trace mode: what the threads of a kernel load and store, counted as a GPU counts it, and what they do wrong.
//
// The idea. g++ -fsanitize=thread puts a call before every load and store, meant for a detector of data races.
// Here those calls (__tsan_read4 and the like) are ours, so the compiler reports each access of an unmodified
// kernel. -fsanitize-coverage=trace-pc reports each basic block that a thread enters. The address tells what an
// access is: the arrays that a kernel is given lie in one reserved range, shared memory in another; everything
// else is a local variable, which on a GPU would be a register.
//
//   Counting. Every thread's accesses and basic blocks are logged. At a barrier, and when the block has ended, the
//   logs of a warp's 32 lanes are replayed side by side: lanes that stand at the same instruction make one request
//   together. Where lanes part, each side runs alone, up to the first place that all their paths share (the
//   immediate postdominator, in the graph of the paths that this warp took), where nvcc lets a GPU's lanes reconverge.
//   Lanes that have returned are not waited for.
//   A request's addresses give its 32-byte sectors, or its wavefronts through the 32 banks of shared memory.
//
//   Races. Each element of an array, and each byte of shared memory, remembers its last store, atomics and loads.
//   Two accesses by different threads, one of them a write and not both atomic, need a barrier between them:
//   __syncthreads() for threads of one block, at least __syncwarp() for lanes of one warp. Threads of different blocks
//   have none; there an atomic on one address, by the first after its access and by the second before its own, orders
//   them. That the order of this run kept the two apart means nothing, so a race is found although it did no harm.
//
//   The rest follows from the same records: accesses outside every array, misaligned ones, reads of what nothing
//   wrote, outputs that nothing wrote, barriers that some threads of a block never reach.
//
// labkit/tracing.py drives this, through the functions at the end, and finds source lines for the addresses of
// instructions. The kernel's file alone is compiled with those two flags; this one is not. Blocks run one by one.
#include <signal.h>

#include "trace_find.h"

namespace cuda_host::trace {
namespace {

Replay warps(nodes);

void forget_logs() {
    for (auto& log : logs) log.clear();
    logged = 0;
}

void replay() {  // all that the block's threads have logged
    for (unsigned first = 0; first < threads; first += warp_size)
        warps.run(logs + first, std::min(warp_size, threads - first), first / warp_size, number - 1 - earlier_blocks);
    forget_logs();
}

}  // namespace

// ---- what the scheduler tells (cuda_host_trace.h) ----

void launch_begins(const Launch& launch) {
    earlier_blocks += blocks_of_launch;
    running = &launch;
    blocks_of_launch = static_cast<unsigned>(launch.order.blocks);
    atomics.clear(), atomics_at.clear(), atomics_of.clear();
    launches += (launches.empty() ? "" : ",") + ("{\"kernel\":" + quoted(launch.kernel.name)) +
                field("grid", triple(launch.grid)) + field("block", triple(launch.block)) + "}";
}

void block_begins(unsigned long long index, unsigned count) {
    scheduler = here.scheduler;
    number = earlier_blocks + static_cast<unsigned>(index) + 1;
    threads = count;
    stamp = last_barrier = 0;
    shared_arrays.clear();
    forget_logs();  // of a block that has failed
    std::fill(&known[0][0], &known[0][0] + threads * warp_size, 0u);
}

void block_ends() { replay(); }

void thread_begins(unsigned thread) {
    context[thread] = last_node[thread] = 0;
    in_kernel = arena != 0;  // nothing is traced before trace_begin
}

void shared_array(const char* name, const unsigned char* address, size_t bytes) {
    const Address at = reinterpret_cast<Address>(address);
    if (shared_arrays.empty()) shared_begin = at;
    for (Array& array : shared_arrays) {
        if (array.at != at) continue;
        array.name = name;
        return;
    }
    const size_t offset = at - shared_begin;
    shared_arrays.push_back({name, at, bytes, 1, Role::both, shared_memory, shared_stores + offset,
                             shared_loads + offset, shared_updates + offset});
}

__attribute__((noinline)) void atomic(const void* address, size_t bytes) {
    if (!in_kernel) return;
    access(__builtin_return_address(0), address, bytes, Kind::atomic);
    const Address at = reinterpret_cast<Address>(address);
    if (at - shared_begin < shared_capacity) return;  // orders nothing between blocks
    const auto thread = static_cast<unsigned short>(current());
    atomics_at[at].push_back(atomics.size());
    atomics_of[number].push_back(atomics.size());
    atomics.push_back({{number, stamp, last_node[thread], ++now, thread}, at, last_barrier});
}

void barrier(const char* what, Site site, unsigned first, unsigned reached) {
    replay();
    last_barrier = ++stamp;
    if (reached == threads) return;
    unsigned missing = 0;
    while (!here.scheduler->has_exited(missing)) ++missing;
    found("barrier not reached by all", last_node[missing], last_node[first], [&] {
        return field("thread", quoted(name_of(missing, number))) + field("barrier", quoted(what)) +
               field("file", quoted(site.file)) + field("line", site.line) + field("reached", reached) +
               field("threads", threads);
    });
}

void absent_lane(const char* what, Site site, unsigned thread, unsigned source, bool is_in_mask) {
    const bool exists = source < threads;
    const char* why = !is_in_mask ? "is not in the mask" : exists ? "has ended" : "does not exist";
    found("shuffle from an absent lane", last_node[thread], last_node[exists ? source : thread], [&] {
        return field("thread", quoted(name_of(thread, number))) + field("shuffle", quoted(what)) +
               field("file", quoted(site.file)) + field("line", site.line) + field("lane", source % warp_size) +
               field("why", quoted(why));
    });
}

void warp_barrier(unsigned first, unsigned mask) {
    unsigned joined[warp_size] = {};
    for (unsigned rest = mask; rest; rest &= rest - 1)
        for (unsigned lane = 0; lane < warp_size; ++lane)
            joined[lane] = std::max(joined[lane], known[first + static_cast<unsigned>(__builtin_ctz(rest))][lane]);
    ++stamp;
    for (unsigned lane = 0; lane < warp_size; ++lane)
        if (mask >> lane & 1) joined[lane] = stamp;
    for (unsigned rest = mask; rest; rest &= rest - 1)
        std::copy(joined, joined + warp_size, known[first + static_cast<unsigned>(__builtin_ctz(rest))]);
}

struct sigaction before[2];  // what handled SIGSEGV and SIGFPE
bool is_watching = false;    // our handler is in place

void crashed(bool by_division, Address address) {
    in_kernel = false;
    const unsigned thread = current();
    if (by_division) here.scheduler->fail(cudaErrorLaunchFailure, "integer division by zero");
    if (address >= elsewhere.address && address < elsewhere.address + elsewhere.size)
        last_node[thread] = intern(context[thread], elsewhere.pc);
    const auto where = [&] { return place(nullptr, address, elsewhere.size, thread); };
    found("access out of bounds", last_node[thread], 0, where);
    here.scheduler->fail(cudaErrorLaunchFailure, "access far out of bounds");
}

void failed(const char* message) {
    found("launch failed", last_node[current()], 0, [&] {
        return field("thread", quoted(name_of(current(), number))) + field("message", quoted(message));
    });
}

}  // namespace cuda_host::trace

// A kernel follows a pointer into nowhere, or divides by zero, which no GPU minds: the launch ends, not the process.
static void on_signal(int signal, siginfo_t* info, void*) {
    if (!cuda_host::trace::in_kernel) {
        sigaction(signal, signal == SIGFPE ? &cuda_host::trace::before[1] : &cuda_host::trace::before[0], nullptr);
        return;  // and it happens again
    }
    cuda_host::trace::crashed(signal == SIGFPE, reinterpret_cast<cuda_host::trace::Address>(info->si_addr));
}

// ---- what the compiler tells ----

using namespace cuda_host::trace;

#define HIDDEN extern "C" __attribute__((visibility("hidden")))
#define PC __builtin_return_address(0)
#define ACCESSES(bytes)                                                                                   \
    HIDDEN void __tsan_read##bytes(void* address) { access(PC, address, bytes, Kind::load); }             \
    HIDDEN void __tsan_write##bytes(void* address) { access(PC, address, bytes, Kind::store); }           \
    HIDDEN void __tsan_unaligned_read##bytes(void* address) { access_in_pieces(PC, address, bytes, Kind::load); } \
    HIDDEN void __tsan_unaligned_write##bytes(void* address) { access_in_pieces(PC, address, bytes, Kind::store); }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
HIDDEN void __tsan_read_range(void* address, size_t bytes) { access_in_pieces(PC, address, bytes, Kind::load); }
HIDDEN void __tsan_write_range(void* address, size_t bytes) { access_in_pieces(PC, address, bytes, Kind::store); }

HIDDEN void __sanitizer_cov_trace_pc() {
    if (in_kernel) log(0, intern(context[current()], PC), Kind::none, global_memory, 0);
}
HIDDEN void __tsan_func_entry(void* call) {
    if (in_kernel) context[current()] = intern(context[current()], call);
}
HIDDEN void __tsan_func_exit() {
    if (in_kernel) context[current()] = nodes[context[current()]].context;
}
HIDDEN void __tsan_init() {}
HIDDEN void __tsan_vptr_update(void**, void*) {}
HIDDEN void __tsan_vptr_read(void**) {}

// Atomic builtins: they do what they say. A kernel's own atomics have been reported by atomic() before.
#define ATOMIC(bits, T, name, builtin) \
    HIDDEN T __tsan_atomic##bits##_##name(T* a, T v, int) { return builtin(a, v, __ATOMIC_SEQ_CST); }
#define COMPARE_EXCHANGE(bits, T, name)                                                                       \
    HIDDEN int __tsan_atomic##bits##_compare_exchange_##name(T* a, T* expected, T v, int, int) {              \
        return __atomic_compare_exchange_n(a, expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);        \
    }
#define ATOMICS(bits, T)                                                                                      \
    HIDDEN T __tsan_atomic##bits##_load(const T* a, int) { return __atomic_load_n(a, __ATOMIC_SEQ_CST); }     \
    HIDDEN void __tsan_atomic##bits##_store(T* a, T v, int) { __atomic_store_n(a, v, __ATOMIC_SEQ_CST); }     \
    ATOMIC(bits, T, exchange, __atomic_exchange_n)                                                            \
    ATOMIC(bits, T, fetch_add, __atomic_fetch_add)                                                            \
    ATOMIC(bits, T, fetch_sub, __atomic_fetch_sub)                                                            \
    ATOMIC(bits, T, fetch_and, __atomic_fetch_and)                                                            \
    ATOMIC(bits, T, fetch_or, __atomic_fetch_or)                                                              \
    ATOMIC(bits, T, fetch_xor, __atomic_fetch_xor)                                                            \
    COMPARE_EXCHANGE(bits, T, strong)                                                                         \
    COMPARE_EXCHANGE(bits, T, weak)
ATOMICS(8, unsigned char)
ATOMICS(16, unsigned short)
ATOMICS(32, unsigned)
ATOMICS(64, unsigned long long)
HIDDEN void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// ---- what labkit/tracing.py calls ----

#define EXPORT extern "C" __attribute__((visibility("default")))

// Forgets everything; arrays of an earlier trace are gone. most_events: that a block may log between two barriers.
EXPORT void trace_begin(size_t most_events) {
    most_logged = most_events;
    in_kernel = false;
    blocks_before = earlier_blocks + blocks_of_launch;
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    if (!is_watching) {  // or an abandoned trace's handler would be taken for the one to go back to
        sigaction(SIGSEGV, &action, &before[0]);
        sigaction(SIGFPE, &action, &before[1]);
    }
    is_watching = true;
    for (Array& a : arrays) free(a.stores), free(a.loads), free(a.updates);
    if (arena) munmap(reinterpret_cast<void*>(arena), reserved);
    void* memory = mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) abort();
    arena = reinterpret_cast<Address>(memory);
    arena_end = arena + reserved / 2;
    arrays.clear(), nodes.clear(), node_of.clear(), findings.clear(), launches.clear();
    for (auto& cached : recent) cached = {};
    intern(0, nullptr);
}

// Memory for an array of `bytes` bytes whose elements have `item` bytes, `offset` bytes after a multiple of 512.
EXPORT void* trace_array(const char* name, size_t bytes, size_t item, size_t offset, int role) {
    const Address at = arena_end + margin + offset, end = (at + bytes + margin + 4095) / 4096 * 4096;
    if (end - arena > reserved || mprotect(reinterpret_cast<void*>(arena_end), end - arena_end, PROT_READ | PROT_WRITE))
        return nullptr;
    arena_end = end;
    const size_t items = bytes / item + 1;
    arrays.push_back({name, at, bytes, item, static_cast<Role>(role), global_memory,
                      static_cast<Access*>(calloc(items, sizeof(Access))),
                      static_cast<Recent*>(calloc(items, sizeof(Recent))),
                      static_cast<Recent*>(calloc(items, sizeof(Recent)))});
    return reinterpret_cast<void*>(at);
}

// Who wrote each element of an array last, by a store or an atomic, from trace_begin on: its block, counted through all
// launches since, and its thread in the block, x first; -1 and -1 where nobody did. `found` takes both of each in turn.
EXPORT void trace_writers(size_t array, int* found) {
    const Array& a = arrays[array];
    for (size_t item = 0; item < a.bytes / a.item; ++item, found += 2) {
        const Access& update = a.updates[item].last;  // a store forgets those before it
        const Access& last = update.block ? update : a.stores[item];
        found[0] = last.block ? static_cast<int>(last.block - 1 - blocks_before) : -1;
        found[1] = last.block ? static_cast<int>(last.thread) : -1;
    }
}

// What was found, as a JSON object; valid until the next call.
EXPORT const char* trace_end() {
    if (is_watching) {
        sigaction(SIGSEGV, &before[0], nullptr);
        sigaction(SIGFPE, &before[1], nullptr);
    }
    is_watching = false;
    static std::string json;
    Dl_info library;
    if (!dladdr(reinterpret_cast<void*>(trace_begin), &library)) abort();
    const char* base_of_code = static_cast<const char*>(library.dli_fbase);
    const auto chain = [&](unsigned node) {  // from the instruction to the outermost call
        std::string text = "[";
        for (; node; node = nodes[node].context)
            text += (text.size() > 1 ? "," : "") +
                    std::to_string(static_cast<const char*>(nodes[node].pc) - 1 - base_of_code);
        return text + "]";
    };
    json = "{\"launches\":[" + launches + "],\"counts\":[";
    for (unsigned node = 1; node < nodes.size(); ++node)
        for (const Space space : {global_memory, shared_memory}) {
            const Counts& c = nodes[node].counts[space];
            if (!c.requests) continue;
            const Address example_at = c.example[__builtin_ctz(c.example_mask)];
            const Address base = space == shared_memory ? shared_begin : nearest(arrays, example_at)->at / 512 * 512;
            std::string example;
            for (unsigned lane = 0; lane < cuda_host::warp_size; ++lane) {
                const long long address = static_cast<long long>(c.example[lane] - base);
                example += (lane ? "," : "") + (c.example_mask >> lane & 1 ? std::to_string(address) : "null");
            }
            json += (json.back() == '[' ? "{" : ",{") + ("\"chain\":" + chain(node)) + field("shared", space) +
                    field("does", quoted(verb(c.kind))) + field("requests", c.requests) + field("lanes", c.lanes) +
                    field("bytes", c.bytes) + field("sectors", c.sectors) + field("ideal_sectors", c.ideal_sectors) +
                    field("wavefronts", c.wavefronts) + field("ideal_wavefronts", c.ideal_wavefronts) +
                    field("array", quoted(c.array)) + field("size", c.example_size) +
                    field("starts", c.example_starts) + field("warp", c.example_warp) +
                    field("block", c.example_block) + field("example", "[" + example + "]") + "}";
        }
    json += "],\"findings\":[";
    for (const auto& [key, finding] : findings)
        json += (json.back() == '[' ? "{" : ",{") + ("\"kind\":" + quoted(std::get<0>(key))) +
                field("chain", chain(std::get<1>(key))) + field("other_chain", chain(std::get<2>(key))) +
                field("count", finding.count) + finding.text + "}";
    json += "],\"unwritten\":[";
    for (const Array& a : arrays) {
        if (a.role != Role::output) continue;
        const auto items = static_cast<long long>(a.bytes / a.item);
        long long missing = 0, first = -1, last = -1;
        for (long long item = 0; item < items; ++item) {
            if (a.stores[item].block || a.updates[item].last.block) continue;
            if (missing++ == 0) first = item;
            last = item;
        }
        if (missing)
            json += (json.back() == '[' ? "{" : ",{") + ("\"array\":" + quoted(a.name)) + field("items", missing) +
                    field("first", first) + field("last", last) + field("of", items) + "}";
    }
    json += "]}";
    return json.c_str();
}

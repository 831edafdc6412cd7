// The threads of one block, run by one OS thread: fibers, barriers, warp operations. Part of cuda_host.h.
//
// A fiber is a stack on which a thread of the block runs. One fiber runs thread after thread, so a kernel in
// which no thread ever waits needs one fiber and never switches. A thread that waits keeps its fiber; the
// scheduler goes on with a thread that is ready, or gives the next thread that has not started a fiber of its
// own. When nobody is left who could run while somebody waits, the kernel has hung, and that is reported.
//
// A fiber is entered once by setcontext; later switches are _setjmp/_longjmp, without a system call.
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

namespace cuda_host {

class Block {
  public:
    // Runs all threads of block number `index` of the launch; false when the launch has failed.
    bool run(Launch& launch, unsigned long long index);

    // Forgets what runs on the fibers' stacks; they stay for the next launch, maybe on another OS thread.
    void reset() {
        for (unsigned i = 0; i < fibers_; ++i) all_[i].entered = false;
    }

    // Waits for all threads of the block that have not exited (their number: *live). Returns how many of them
    // gave a true predicate.
    int barrier(const char* what, bool predicate, Site site, int* live);

    // Waits for the lanes of `mask` and returns this lane's result. `size`: bytes of the value.
    unsigned long long warp(WarpOp op, const char* what, unsigned mask, unsigned long long value,
                            int argument, int width, int size, Site site);

    // The memory behind `extern __shared__`.
    void* dynamic_shared(const char* name);

    // The memory of the __shared__ variable that `key` stands for. At the block's first arrival it is counted
    // and filled with ones.
    void* shared(const void* key, const char* name, size_t bytes);

    // Ends the launch with an error. The stacks are left as they are: device code owns nothing.
    [[noreturn]] __attribute__((format(printf, 3, 4))) void fail(cudaError_t error, const char* format, ...);

    const char* where(unsigned thread);  // "thread (3,0,0) of block (1,0,0)"
    unsigned current() const { return thread_; }
    bool has_exited(unsigned thread) const { return state_[thread] == State::exited; }

  private:
    enum class State : unsigned char { unstarted, running, ready, in_barrier, in_warp_op, exited };
    struct Fiber {
        jmp_buf resume;
        ucontext_t start;
        unsigned char* stack;
        bool entered;
    };
    struct Wait {  // what a thread waits for, and what it got
        const char* what;
        Site site;
        WarpOp op;
        unsigned mask;
        unsigned long long value, result;
        int argument, width, size;
    };

    struct Shared {  // one array in the block's shared memory
        const void* key;
        const char* name;
        unsigned char* address;
        size_t bytes;
    };


    static void fiber_main();
    void run_unstarted();
    [[noreturn]] void enter(Fiber* fiber);
    void switch_to(Fiber* next);
    Fiber* idle_fiber();
    bool check_memory();
    void* place_shared(const void* key, const char* name, size_t bytes);
    bool all_are(const unsigned char* bytes, size_t count, unsigned char value);
    void suspend();
    void exit_thread();
    void make_ready(unsigned thread);
    void release_barrier();
    bool complete_warp_op(unsigned thread);
    static unsigned source_of(const Wait& self, unsigned lane);
    static unsigned long long warp_result(const Wait& self, unsigned source, const unsigned long long* values,
                                          unsigned present);
    [[noreturn]] void report_hang();

    Launch* launch_ = nullptr;
    unsigned char* shared_memory_ = nullptr;
    jmp_buf main_;
    Fiber all_[max_threads] = {};
    Fiber* idle_[max_threads];
    Fiber* fiber_ = nullptr;  // runs now
    Fiber* fiber_of_[max_threads];
    State state_[max_threads];
    Wait wait_[max_threads];
    unsigned short ready_[max_threads];  // a ring: each thread is in it at most once
    unsigned ready_first_ = 0, ready_count_ = 0;
    unsigned warp_waiting_[max_threads / warp_size];  // lanes of a warp that are in a warp operation
    unsigned fibers_ = 0, idle_count_ = 0;
    unsigned idle_low_ = 0;  // the fewest idle ones during this block
    unsigned threads_ = 0, started_ = 0, live_ = 0, thread_ = 0;
    unsigned in_barrier_ = 0, barrier_first_ = 0;
    int barrier_votes_ = 0;
    Shared shared_[most_shared_arrays];  // the first is the dynamic one
    unsigned shared_count_ = 0;
    size_t shared_bytes_ = 0;
    Order order_;
};

inline bool Block::run(Launch& launch, unsigned long long index) {
    launch_ = &launch;
    const dim3 grid = launch.grid;
    here.block = {static_cast<unsigned>(index % grid.x), static_cast<unsigned>(index / grid.x % grid.y),
                  static_cast<unsigned>(index / grid.x / grid.y)};
    threads_ = live_ = launch.block.x * launch.block.y * launch.block.z;
    started_ = in_barrier_ = ready_count_ = shared_count_ = 0;
    barrier_votes_ = 0;
    shared_bytes_ = 0;
    order_.begin_block(launch.order, index, threads_);
    memset(state_, 0, threads_);
    memset(warp_waiting_, 0, sizeof warp_waiting_);
    void* memory = shared_memory_;
    if (!memory && posix_memalign(&memory, shared_alignment, shared_capacity)) abort();
    shared_memory_ = static_cast<unsigned char*>(memory);
    if constexpr (tracing) trace::block_begins(index, threads_);
    place_shared(nullptr, "extern __shared__", launch.dynamic_shared);
    idle_count_ = 0;
    for (unsigned i = fibers_; i > 0; --i) idle_[idle_count_++] = &all_[i - 1];
    idle_low_ = idle_count_;
    switch (_setjmp(main_)) {
        case 0: enter(idle_fiber());
        case 1: break;
        default: return false;
    }
    if constexpr (tracing) trace::block_ends();
    return check_memory();
}

inline bool Block::all_are(const unsigned char* bytes, size_t count, unsigned char value) {
    return bytes[0] == value && memcmp(bytes, bytes + 1, count - 1) == 0;
}

// After a block: has it written where it should not? Fails the launch if so. Fibers are used in order of
// their number.
inline bool Block::check_memory() {
    if (_setjmp(main_)) return false;
    for (Fiber* fiber = all_; fiber < all_ + fibers_ - idle_low_; ++fiber) {
        if (all_are(fiber->stack, band_bytes, band_value)) continue;
        memset(fiber->stack, band_value, band_bytes);
        fail(cudaErrorLaunchFailure,
             "a thread of block (%u,%u,%u) has more local variables than the host backend's %zu KiB of stack",
             here.block.x, here.block.y, here.block.z, stack_bytes / 1024);
    }
    for (const Shared* array = shared_; array < shared_ + shared_count_; ++array) {
        if (tracing || all_are(array->address + array->bytes, watched_bytes, 0xff)) continue;
        fail(cudaErrorLaunchFailure, "block (%u,%u,%u) writes beyond its shared array `%s`, %s %zu bytes",
             here.block.x, here.block.y, here.block.z, array->name,
             array == shared_ ? "to which the launch gave" : "which has", array->bytes);
    }
    return true;
}

inline void Block::fiber_main() {
    Block* block = here.scheduler;
    for (;;) {
        block->run_unstarted();
        Fiber* self = block->fiber_;
        block->idle_[block->idle_count_++] = self;
        if (block->ready_count_) {
            unsigned thread = block->ready_[block->ready_first_];
            block->switch_to(block->fiber_of_[thread]);
        } else if (block->live_ == 0) {
            if (_setjmp(self->resume) == 0) _longjmp(block->main_, 1);
        } else {
            block->report_hang();
        }
    }
}

// Starts threads, one after another, until one that has waited can go on.
inline void Block::run_unstarted() {
    const dim3 dim = launch_->block;
    while (started_ < threads_ && ready_count_ == 0) {
        unsigned thread = order_.thread(started_++);
        thread_ = thread;
        state_[thread] = State::running;
        fiber_of_[thread] = fiber_;
        here.thread = dim.y * dim.z == 1
                          ? uint3{thread, 0, 0}
                          : uint3{thread % dim.x, thread / dim.x % dim.y, thread / dim.x / dim.y};
        if constexpr (tracing) trace::thread_begins(thread);
        launch_->thread_main(launch_->body);
        trace::in_kernel = false;
        exit_thread();
    }
}

inline void Block::enter(Fiber* fiber) {
    fiber_ = fiber;
    if (fiber->entered) _longjmp(fiber->resume, 1);
    fiber->entered = true;
    if (getcontext(&fiber->start)) abort();
    fiber->start.uc_stack.ss_sp = fiber->stack;
    fiber->start.uc_stack.ss_size = stack_bytes;
    fiber->start.uc_link = nullptr;
    makecontext(&fiber->start, fiber_main, 0);
    setcontext(&fiber->start);
    abort();
}

__attribute__((noinline)) inline void Block::switch_to(Fiber* next) {
    if (_setjmp(fiber_->resume) == 0) enter(next);
}

inline Block::Fiber* Block::idle_fiber() {
    if (idle_count_) {
        Fiber* idle = idle_[--idle_count_];
        if (idle_count_ < idle_low_) idle_low_ = idle_count_;
        return idle;
    }
    Fiber* fiber = &all_[fibers_++];  // one a thread at most, so there is room
    void* room = mmap(nullptr, stack_bytes + page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
    if (room == MAP_FAILED) abort();
    // Stacks that all began where a page does would share a few lines of the CPU's cache.
    fiber->stack = static_cast<unsigned char*>(room) + fibers_ * 256 % page_bytes;
    memset(fiber->stack, band_value, band_bytes);
    idle_low_ = 0;
    return fiber;
}

// The current thread waits, or is ready and lets others go first. Returns when it may go on.
inline void Block::suspend() {
    const unsigned thread = thread_;
    const uint3 index = here.thread;
    if (ready_count_) {
        unsigned next = ready_[ready_first_];
        if (next != thread) switch_to(fiber_of_[next]);
    } else if (started_ < threads_) {
        switch_to(idle_fiber());
    } else {
        report_hang();
    }
    ready_first_ = (ready_first_ + 1) % max_threads;  // whoever is switched to is the first that was ready
    --ready_count_;
    fiber_ = fiber_of_[thread];
    thread_ = thread;
    here.thread = index;
    state_[thread] = State::running;
}

inline void Block::make_ready(unsigned thread) {
    state_[thread] = State::ready;
    ready_[(ready_first_ + ready_count_++) % max_threads] = static_cast<unsigned short>(thread);
}

inline void Block::exit_thread() {
    state_[thread_] = State::exited;
    --live_;
    if (in_barrier_ && in_barrier_ == live_) release_barrier();
    const unsigned first = thread_ / warp_size * warp_size;
    if (warp_waiting_[thread_ / warp_size] == 0) return;
    for (unsigned lane = 0; lane < warp_size && first + lane < threads_; ++lane)
        if (state_[first + lane] == State::in_warp_op) complete_warp_op(first + lane);
}

inline void* Block::dynamic_shared(const char* name) {
    shared_[0].name = name;
    if constexpr (tracing) trace::shared_array(name, shared_[0].address, shared_[0].bytes);
    return shared_[0].address;
}

inline void* Block::shared(const void* key, const char* name, size_t bytes) {
    for (unsigned i = 1; i < shared_count_; ++i)
        if (shared_[i].key == key) return shared_[i].address;
    const trace::Pause pause;
    const size_t allowed =
        launch_->dynamic_shared && launch_->kernel.max_dynamic_shared ? max_shared : max_static_shared;
    if (shared_count_ == most_shared_arrays || shared_bytes_ + bytes > allowed)
        fail(cudaErrorInvalidValue, "too much shared memory");
    return place_shared(key, name, bytes);
}

// Arrays lie apart, with watched bytes between them, so that one written beyond its end does not reach another.
inline void* Block::place_shared(const void* key, const char* name, size_t bytes) {
    const Shared* last = shared_ + shared_count_ - 1;
    unsigned char* at = shared_memory_;
    if (shared_count_)
        at += (static_cast<size_t>(last->address - at) + last->bytes + watched_bytes + shared_alignment - 1) /
              shared_alignment * shared_alignment;
    memset(at, 0xff, bytes + watched_bytes);
    shared_[shared_count_++] = {key, name, at, bytes};
    shared_bytes_ += bytes;
    if constexpr (tracing) trace::shared_array(name, at, bytes);
    return at;
}

inline const char* Block::where(unsigned thread) {
    static thread_local char text[2][96];
    static thread_local unsigned turn = 0;
    const dim3 dim = launch_->block;
    char* out = text[turn++ % 2];
    snprintf(out, sizeof text[0], "thread (%u,%u,%u) of block (%u,%u,%u)", thread % dim.x,
             thread / dim.x % dim.y, thread / dim.x / dim.y, here.block.x, here.block.y, here.block.z);
    return out;
}

inline void Block::fail(cudaError_t error, const char* format, ...) {
    trace::in_kernel = false;
    int first = 0;
    if (__atomic_compare_exchange_n(&launch_->failed, &first, 1, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        launch_->error = error;
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(launch_->message, sizeof launch_->message, format, arguments);
        va_end(arguments);
        if constexpr (tracing) trace::failed(launch_->message);
    }
    reset();
    _longjmp(main_, 2);
}

}  // namespace cuda_host

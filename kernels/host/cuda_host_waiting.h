// What threads of a block wait for: barriers and warp operations; and reports of a hang. Part of cuda_host.h.
//
// A barrier is complete when all threads that have not exited are in it, at one and the same statement. A
// warp operation is complete when every lane of its mask has come with the same operation and mask, or has
// exited: CUDA's own rule.
#pragma once

namespace cuda_host {

inline int Block::barrier(const char* what, bool predicate, Site site, int* live) {
    const trace::Pause pause;
    const unsigned thread = thread_;
    wait_[thread].what = what;
    wait_[thread].site = site;
    if (in_barrier_ == 0) {
        barrier_first_ = thread;
    } else {
        const Wait& first = wait_[barrier_first_];
        if (!(first.site == site) || strcmp(first.what, what) != 0)
            fail(cudaErrorLaunchFailure,
                 "the threads of a block wait at different barriers: %s in %s at %s:%d, %s in %s at %s:%d. "
                 "All threads of a block must reach the same barrier",
                 where(barrier_first_), first.what, first.site.name(), first.site.line, where(thread), what,
                 site.name(), site.line);
    }
    state_[thread] = State::in_barrier;
    barrier_votes_ += predicate;
    if (++in_barrier_ == live_) release_barrier();
    suspend();
    *live = wait_[thread].argument;
    return static_cast<int>(wait_[thread].result);
}

inline void Block::release_barrier() {
    if constexpr (tracing) {
        const Wait& first = wait_[barrier_first_];
        trace::barrier(first.what, first.site, barrier_first_, in_barrier_);
    }
    order_.shuffle();
    for (unsigned k = 0; k < threads_; ++k) {
        unsigned thread = order_.thread(k);
        if (state_[thread] != State::in_barrier) continue;
        wait_[thread].result = static_cast<unsigned>(barrier_votes_);
        wait_[thread].argument = static_cast<int>(in_barrier_);
        make_ready(thread);
    }
    in_barrier_ = 0;
    barrier_votes_ = 0;
}

inline unsigned long long Block::warp(WarpOp op, const char* what, unsigned mask, unsigned long long value,
                                      int argument, int width, int size, Site site) {
    const trace::Pause pause;
    const unsigned thread = thread_;
    if (!(mask >> thread % warp_size & 1))
        fail(cudaErrorLaunchFailure,
             "%s calls %s at %s:%d with mask 0x%08x, which leaves out its own lane %u", where(thread), what,
             site.name(), site.line, mask, thread % warp_size);
    if (width < 1 || width > 32 || (width & (width - 1)))
        fail(cudaErrorLaunchFailure, "%s calls %s at %s:%d with width %d; it must be 1, 2, 4, 8, 16 or 32",
             where(thread), what, site.name(), site.line, width);
    wait_[thread] = {what, site, op, mask, value, 0, argument, width, size};
    state_[thread] = State::in_warp_op;
    ++warp_waiting_[thread / warp_size];
    complete_warp_op(thread);
    suspend();
    return wait_[thread].result;
}

// If all lanes that `thread` waits for have come or have exited: gives each its result and makes it ready.
inline bool Block::complete_warp_op(unsigned thread) {
    const Wait self = wait_[thread];
    const unsigned first = thread / warp_size * warp_size;
    unsigned long long values[warp_size];
    unsigned present = 0;
    for (int lane = warp_size - 1; lane >= 0; --lane) {
        const unsigned other = first + static_cast<unsigned>(lane);
        if (!(self.mask >> lane & 1) || other >= threads_ || state_[other] == State::exited) continue;
        const Wait& wait = wait_[other];
        if (state_[other] != State::in_warp_op || wait.mask != self.mask || wait.op != self.op ||
            wait.size != self.size)
            return false;
        values[lane] = wait.value;
        present |= 1u << lane;
    }
    if constexpr (tracing)
        if (self.op == WarpOp::sync) trace::warp_barrier(first, present);
    for (unsigned k = 0; k < warp_size; ++k) {
        const unsigned lane = order_.lane(k);
        if (!(present >> lane & 1)) continue;
        Wait& wait = wait_[first + lane];
        const unsigned source = source_of(wait, lane);
        wait.result = warp_result(wait, source, values, present);
        if constexpr (tracing)
            if (!(present >> source & 1))
                trace::absent_lane(wait.what, wait.site, first + lane, first + source, self.mask >> source & 1);
        --warp_waiting_[thread / warp_size];
        make_ready(first + lane);
    }
    return true;
}

// Which lane's value a lane gets: its own, unless the operation is a shuffle.
inline unsigned Block::source_of(const Wait& self, unsigned lane) {
    const int me = static_cast<int>(lane), width = self.width, distance = self.argument & 31;
    const int segment = me & ~(width - 1), last = segment + width - 1;
    int source = me;
    switch (self.op) {
        case WarpOp::shuffle: source = segment + (self.argument & (width - 1)); break;
        case WarpOp::shuffle_up: source = me - distance < segment ? me : me - distance; break;
        case WarpOp::shuffle_down: source = me + distance > last ? me : me + distance; break;
        case WarpOp::shuffle_xor: source = (me ^ distance) > last ? me : me ^ distance; break;
        default: break;
    }
    return static_cast<unsigned>(source);
}

inline unsigned long long Block::warp_result(const Wait& self, unsigned source, const unsigned long long* values,
                                             unsigned present) {
    const auto lanes = [&](auto which) {  // a bit for each lane that has come and whose value is such
        unsigned found = 0;
        for (unsigned i = 0; i < warp_size; ++i)
            if (present >> i & 1) found |= (which(values[i]) ? 1u : 0u) << i;
        return found;
    };
    const auto is_true = [](unsigned long long value) { return value != 0; };
    const auto is_same = [&](unsigned long long value) { return value == self.value; };
    switch (self.op) {
        case WarpOp::sync: return 0;
        case WarpOp::ballot: return lanes(is_true);
        case WarpOp::all: return lanes(is_true) == present;
        case WarpOp::any: return lanes(is_true) != 0;
        case WarpOp::match_any: return lanes(is_same);
        case WarpOp::match_all: return lanes(is_same) == present ? present : 0;
        default: return present >> source & 1 ? values[source] : ~0ull;
    }
}

// Nobody can run and somebody waits: for a lane that never comes, as barriers are checked on arrival.
inline void Block::report_hang() {
    unsigned waiting = 0;
    while (state_[waiting] != State::in_warp_op) ++waiting;
    const Wait& wait = wait_[waiting];
    unsigned missing = waiting / warp_size * warp_size;
    for (;; ++missing) {
        if (!(wait.mask >> missing % warp_size & 1) || state_[missing] == State::exited) continue;
        const Wait& other = wait_[missing];
        if (state_[missing] != State::in_warp_op || other.mask != wait.mask || other.op != wait.op ||
            other.size != wait.size)
            break;
    }
    const Wait& other = wait_[missing];
    char with[32] = "";
    if (state_[missing] == State::in_warp_op) snprintf(with, sizeof with, " with mask 0x%08x", other.mask);
    fail(cudaErrorLaunchFailure,
         "%s waits in %s at %s:%d for lane %u of its warp (mask 0x%08x), which never comes: it waits in %s "
         "at %s:%d%s",
         where(waiting), wait.what, wait.site.name(), wait.site.line, missing % warp_size, wait.mask,
         other.what, other.site.name(), other.site.line, with);
}

}  // namespace cuda_host

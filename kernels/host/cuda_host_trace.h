// The seam between the host backend and its trace mode. Part of cuda_host.h; the tracer itself is trace.cpp.
//
// With CUDA_HOST_TRACE defined, the backend tells the tracer what it does with the threads of a block, and the
// compiler (-fsanitize=thread) what those threads load and store. Without it, nothing of this is compiled.
#pragma once

namespace cuda_host {

#ifdef CUDA_HOST_TRACE
constexpr bool tracing = true;
#else
constexpr bool tracing = false;
#endif

namespace trace {

// What is loaded and stored now is a kernel's doing. One launch at a time is traced, on one OS thread.
inline bool in_kernel = false;

void launch_begins(const Launch& launch);
void block_begins(unsigned long long index, unsigned threads);
void block_ends();
void thread_begins(unsigned thread);

// A shared array of the running block.
void shared_array(const char* name, const unsigned char* address, size_t bytes);

// An atomic operation on `bytes` bytes, by the running thread.
void atomic(const void* address, size_t bytes);

// All threads that still run have come to the barrier: `reached` of them, the first one `first`.
void barrier(const char* what, Site site, unsigned first, unsigned reached);

// The lanes of `mask` of the warp that begins at thread `first` have met in __syncwarp.
void warp_barrier(unsigned first, unsigned mask);

// The thread's shuffle reads the lane of thread `source` of the block, which takes no part: it is not in the mask, has ended,
// or does not exist.
void absent_lane(const char* what, Site site, unsigned thread, unsigned source, bool is_in_mask);

// The launch ends here, with an error: `message` says which.
void failed(const char* message);

// While one lives, the scheduler runs, and not a kernel's thread.
struct Pause {
    const bool before = tracing && in_kernel;
    Pause() {
        if constexpr (tracing) in_kernel = false;
    }
    ~Pause() {
        if constexpr (tracing) in_kernel = before;
    }
};

}  // namespace trace
}  // namespace cuda_host

// Launching: what stands between <<< and >>>, its checks, blocks spread over OS threads. Part of cuda_host.h.
#pragma once

#include <pthread.h>
#include <unistd.h>

struct CUstream_st;
typedef CUstream_st* cudaStream_t;

namespace cuda_host {

struct Config {
    dim3 grid, block;
    size_t dynamic_shared;
    bool pending;  // set by configure, taken by the kernel that is called next
};
inline constinit thread_local Config config{{}, {}, 0, false};
inline constinit thread_local KernelInfo** probe = nullptr;  // see cudaFuncSetAttribute

// The first half of a launch; the second is the call of the kernel, whose body hands itself to run().
inline void configure(dim3 grid, dim3 block, size_t dynamic_shared, cudaStream_t) {
    config = {grid, block, dynamic_shared, true};
}

// A launch that names no stream: under PyTorch that is a fault, which labkit's `check` looks for.
inline constinit unsigned long long launches_without_a_stream = 0;
inline void configure(dim3 grid, dim3 block = 1, size_t dynamic_shared = 0) {
    __atomic_fetch_add(&launches_without_a_stream, 1ull, __ATOMIC_RELAXED);
    configure(grid, block, dynamic_shared, nullptr);
}

inline cudaError_t check(const KernelInfo& kernel, const Config& c) {
    const auto positive = [](dim3 d) { return d.x > 0 && d.y > 0 && d.z > 0; };
    if (!positive(c.grid) || !positive(c.block)) return cudaErrorInvalidConfiguration;
    if (c.grid.x > 0x7fffffff || c.grid.y > 65535 || c.grid.z > 65535) return cudaErrorInvalidConfiguration;
    if (c.block.x > max_threads || c.block.y > max_threads || c.block.z > 64)
        return cudaErrorInvalidConfiguration;
    const unsigned threads = c.block.x * c.block.y * c.block.z;
    if (threads > max_threads) return cudaErrorInvalidConfiguration;
    if (kernel.launch_bound && threads > static_cast<unsigned>(kernel.launch_bound))
        return cudaErrorInvalidValue;
    if (c.dynamic_shared > (kernel.max_dynamic_shared ? kernel.max_dynamic_shared : max_static_shared))
        return cudaErrorInvalidValue;
    return cudaSuccess;
}

// Schedulers, with their stacks, are kept for later launches.
struct Pool {
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    Block* free[256];
    unsigned count = 0;

    Block* take() {
        pthread_mutex_lock(&lock);
        Block* block = count ? free[--count] : nullptr;
        pthread_mutex_unlock(&lock);
        return block ? block : new Block;
    }
    void give(Block* block) {
        pthread_mutex_lock(&lock);
        if (count < 256) free[count++] = block;
        pthread_mutex_unlock(&lock);
    }
};
inline Pool pool;

inline unsigned os_threads() {
    const char* chosen = getenv("LABKIT_HOST_THREADS");
    const long n = chosen ? atol(chosen) : sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > 256 ? 256 : static_cast<unsigned>(n);
}

// What each OS thread of a launch does: takes blocks until none is left or one has failed.
inline void* run_blocks(void* argument) {
    Launch& launch = *static_cast<Launch*>(argument);
    Block* scheduler = pool.take();
    here.scheduler = scheduler;
    here.grid_dim = launch.grid;
    here.block_dim = launch.block;
    while (!__atomic_load_n(&launch.failed, __ATOMIC_RELAXED)) {
        const unsigned long long index = __atomic_fetch_add(&launch.next_block, 1, __ATOMIC_RELAXED);
        if (index >= launch.order.blocks || !scheduler->run(launch, launch.order.block(index))) break;
    }
    scheduler->reset();
    here.scheduler = nullptr;
    pool.give(scheduler);
    return nullptr;
}

inline void report(cudaError_t error, const KernelInfo& kernel, const char* message) {
    last_error = error;
    const char* words =
        error == cudaErrorAssert ? "device-side assert triggered" : "unspecified launch failure";
    snprintf(failure, sizeof failure, "%s: kernel %.200s: %.700s", words, kernel.name, message);
}

inline void launch(KernelInfo& kernel, void (*thread_main)(const void*), const void* body) {
    const Config c = config;
    config.pending = false;
    if (here.scheduler)
        here.scheduler->fail(cudaErrorLaunchFailure,
                             "launches kernel %s; a kernel cannot launch a kernel here", kernel.name);
    if (!c.pending)
        return report(cudaErrorLaunchFailure, kernel, "called like a function, without <<<grid, block>>>");
    if (cudaError_t error = check(kernel, c)) {
        last_error = error;
        return;
    }
    Launch launch{kernel,      c.grid, c.block, c.dynamic_shared,
                  thread_main, body,   Schedule(1ull * c.grid.x * c.grid.y * c.grid.z)};
    if constexpr (tracing) {
        launch.order.kind = Schedule::forward;  // a trace is the same each time
        trace::launch_begins(launch);
    }
    // An OS thread costs some 20 us: small launches stay on this one.
    const unsigned long long blocks = launch.order.blocks, threads = blocks * c.block.x * c.block.y * c.block.z;
    unsigned workers = threads < 4096 || tracing || launch.order.kind != Schedule::free ? 1 : os_threads();
    if (workers > blocks) workers = static_cast<unsigned>(blocks);
    pthread_t others[256];
    unsigned started = 0;
    while (started + 1 < workers && pthread_create(&others[started], nullptr, run_blocks, &launch) == 0)
        ++started;
    run_blocks(&launch);
    for (unsigned i = 0; i < started; ++i) pthread_join(others[i], nullptr);
    if (launch.error == cudaErrorInvalidValue)
        last_error = launch.error;
    else if (launch.error)
        report(launch.error, kernel, launch.message);
}

// A __global__ function's body comes here as a lambda that has captured the arguments; each thread gets its
// own copy.
template <class Body>
inline void run(KernelInfo& kernel, const Body& body) {
    if (probe) {
        *probe = &kernel;
        return;
    }
    launch(
        kernel,
        [](const void* b) {
            Body copy = *static_cast<const Body*>(b);
            copy();
        },
        &body);
}

inline Block& block_here() {
    if (here.scheduler) return *here.scheduler;
    fputs("host backend: a function that only kernels may call was called outside a kernel\n", stderr);
    abort();
}

inline void* dynamic_shared(const char* name) { return block_here().dynamic_shared(name); }

template <class S, class T>
inline T& shared(const char* name, const void* key, T S::*) {
    static_assert(sizeof(T) <= max_static_shared, "more than 48 KiB in one __shared__ variable");
    return *static_cast<T*>(block_here().shared(key, name, sizeof(T)));
}

// The __shared__ variable `name`. `declared`, a function of a type of its own for each declaration and template
// instance, returns a pointer to a member of the variable's type.
template <class Declared>
inline auto& shared(const char* name, Declared declared) {
    static const char key = 0;
    return shared(name, &key, declared());
}

template <class T>
inline T& zero() {  // an argument for a call that never looks at it
    alignas(T) static unsigned char bytes[sizeof(T)] = {};
    return *reinterpret_cast<T*>(bytes);
}

[[noreturn]] inline void assertion_failed(const char* expression, const char* file, unsigned line) {
    if (here.scheduler)
        here.scheduler->fail(cudaErrorAssert, "%s: assertion `%s` failed at %s:%u",
                             here.scheduler->where(here.scheduler->current()), expression, file, line);
    fprintf(stderr, "%s:%u: assertion `%s` failed\n", file, line, expression);
    abort();
}

}  // namespace cuda_host

#ifdef __APPLE__
extern "C" inline void cuda_host_assert_fail(const char*, const char* file, int line,
                                             const char* expression) {
    ::cuda_host::assertion_failed(expression, file, static_cast<unsigned>(line));
}
#else
extern "C" inline void cuda_host_assert_fail(const char* expression, const char* file, unsigned line,
                                             const char*) noexcept {
    ::cuda_host::assertion_failed(expression, file, line);
}
#endif

extern "C" __attribute__((used, visibility("default"))) inline unsigned long long cuda_host_launches_without_a_stream() {
    return __atomic_load_n(&::cuda_host::launches_without_a_stream, __ATOMIC_RELAXED);
}

#define threadIdx (static_cast<const uint3&>(::cuda_host::here.thread))
#define blockIdx (static_cast<const uint3&>(::cuda_host::here.block))
#define blockDim (static_cast<const dim3&>(::cuda_host::here.block_dim))
#define gridDim (static_cast<const dim3&>(::cuda_host::here.grid_dim))
constexpr int warpSize = 32;

// ---- the part of the runtime API that launchers need ----

enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
    cudaFuncAttributePreferredSharedMemoryCarveout = 9,
};

// Only a kernel knows its KernelInfo: it is called once, in a mode in which it tells just that.
template <class... Parameters>
inline cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute attribute,
                                        int value) {
    if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) return cudaSuccess;  // a hint
    if (value < 0 || static_cast<size_t>(value) > cuda_host::max_shared)
        return cuda_host::last_error = cudaErrorInvalidValue;
    cuda_host::KernelInfo* info = nullptr;
    cuda_host::probe = &info;
    kernel(cuda_host::zero<Parameters>()...);
    cuda_host::probe = nullptr;
    info->max_dynamic_shared = static_cast<size_t>(value);
    return cudaSuccess;
}
// A kernel that was cast to a pointer to void could not be called.
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int) = delete;

// What a launcher may ask of a kernel on a GPU. These exist so that it builds, and say that there is no answer here.
struct cudaFuncAttributes {
    size_t sharedSizeBytes, constSizeBytes, localSizeBytes;
    int maxThreadsPerBlock, numRegs;
};
template <class Kernel>
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, Kernel) {
    return cuda_host::last_error = cudaErrorNotSupported;
}
template <class Kernel>
inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int*, Kernel, int, size_t) {
    return cuda_host::last_error = cudaErrorNotSupported;
}

inline cudaError_t cudaGetDevice(int* device) {
    *device = 0;
    return cudaSuccess;
}
inline cudaError_t cudaGetDeviceCount(int* count) {
    *count = 1;
    return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int device) {
    return device == 0 ? cudaSuccess : cuda_host::last_error = cudaErrorInvalidDevice;
}

enum cudaDeviceAttr {
    cudaDevAttrMaxThreadsPerBlock = 1,
    cudaDevAttrMaxBlockDimX = 2,
    cudaDevAttrMaxBlockDimY = 3,
    cudaDevAttrMaxBlockDimZ = 4,
    cudaDevAttrMaxGridDimX = 5,
    cudaDevAttrMaxGridDimY = 6,
    cudaDevAttrMaxGridDimZ = 7,
    cudaDevAttrMaxSharedMemoryPerBlock = 8,
    cudaDevAttrWarpSize = 10,
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrMaxThreadsPerMultiProcessor = 39,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76,
    cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
    cudaDevAttrMaxBlocksPerMultiprocessor = 106,
};

// The limits of an H200, whatever the machine.
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
    if (device != 0) return cuda_host::last_error = cudaErrorInvalidDevice;
    switch (attribute) {
        case cudaDevAttrMaxThreadsPerBlock:
        case cudaDevAttrMaxBlockDimX:
        case cudaDevAttrMaxBlockDimY: *value = 1024; break;
        case cudaDevAttrMaxBlockDimZ: *value = 64; break;
        case cudaDevAttrMaxGridDimX: *value = 0x7fffffff; break;
        case cudaDevAttrMaxGridDimY:
        case cudaDevAttrMaxGridDimZ: *value = 65535; break;
        case cudaDevAttrMaxSharedMemoryPerBlock: *value = cuda_host::max_static_shared; break;
        case cudaDevAttrWarpSize: *value = 32; break;
        case cudaDevAttrMultiProcessorCount: *value = 132; break;
        case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
        case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
        case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 233472; break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = cuda_host::max_shared; break;
        case cudaDevAttrMaxBlocksPerMultiprocessor: *value = 32; break;
        default: return cuda_host::last_error = cudaErrorInvalidValue;
    }
    return cudaSuccess;
}

// Launches are finished when they return; a failed one is reported here too, as CUDA does.
inline cudaError_t cudaDeviceSynchronize() {
    return cuda_host::last_error >= cudaErrorAssert ? cuda_host::last_error : cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaDeviceSynchronize(); }

inline cudaError_t cudaMemsetAsync(void* address, int value, size_t bytes, cudaStream_t = nullptr) {
    memset(address, value, bytes);
    return cudaSuccess;
}

// Barriers, fences, shuffles, votes and bit counting, as kernels call them. Part of cuda_host.h.
#pragma once

namespace cuda_host {

// The calling statement: default arguments are evaluated where the call is written.
#define CUDA_HOST_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline int lane() { return static_cast<int>(block_here().current() % warp_size); }

inline unsigned long long warp_op(WarpOp op, const char* what, unsigned mask, unsigned long long value,
                                  int size, Site site, int argument = 0, int width = 32) {
    return block_here().warp(op, what, mask, value, argument, width, size, site);
}

template <class T>
inline unsigned long long to_bits(T value) {
    static_assert(sizeof(T) <= 8);
    unsigned long long bits = 0;
    memcpy(&bits, &value, sizeof(T));
    return bits;
}

template <class T>
inline T from_bits(unsigned long long bits) {
    T value;
    memcpy(static_cast<void*>(&value), &bits, sizeof(T));
    return value;
}

}  // namespace cuda_host

inline void __syncthreads(CUDA_HOST_SITE) {
    int live;
    ::cuda_host::block_here().barrier("__syncthreads", false, {file, line}, &live);
}
inline int __syncthreads_count(int predicate, CUDA_HOST_SITE) {
    int live;
    return ::cuda_host::block_here().barrier("__syncthreads_count", predicate != 0, {file, line}, &live);
}
inline int __syncthreads_and(int predicate, CUDA_HOST_SITE) {
    int live;
    int votes = ::cuda_host::block_here().barrier("__syncthreads_and", predicate != 0, {file, line}, &live);
    return votes == live;
}
inline int __syncthreads_or(int predicate, CUDA_HOST_SITE) {
    int live;
    return ::cuda_host::block_here().barrier("__syncthreads_or", predicate != 0, {file, line}, &live) != 0;
}

inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

inline void __syncwarp(unsigned mask = 0xffffffffu, CUDA_HOST_SITE) {
    ::cuda_host::warp_op(::cuda_host::WarpOp::sync, "__syncwarp", mask, 0, 0, {file, line});
}
inline unsigned __ballot_sync(unsigned mask, int predicate, CUDA_HOST_SITE) {
    return static_cast<unsigned>(::cuda_host::warp_op(::cuda_host::WarpOp::ballot, "__ballot_sync", mask,
                                                      predicate != 0, 0, {file, line}));
}
inline int __any_sync(unsigned mask, int predicate, CUDA_HOST_SITE) {
    return static_cast<int>(
        ::cuda_host::warp_op(::cuda_host::WarpOp::any, "__any_sync", mask, predicate != 0, 0, {file, line}));
}
inline int __all_sync(unsigned mask, int predicate, CUDA_HOST_SITE) {
    return static_cast<int>(
        ::cuda_host::warp_op(::cuda_host::WarpOp::all, "__all_sync", mask, predicate != 0, 0, {file, line}));
}
inline unsigned __activemask() { return 1u << ::cuda_host::lane(); }  // see the head of cuda_host.h

#define CUDA_HOST_SHUFFLE(name, op, T, Argument)                                                    \
    inline T name(unsigned mask, T value, Argument argument, int width = 32, CUDA_HOST_SITE) {      \
        return ::cuda_host::from_bits<T>(                                                           \
            ::cuda_host::warp_op(::cuda_host::WarpOp::op, #name, mask, ::cuda_host::to_bits(value), \
                                 sizeof(T), {file, line}, static_cast<int>(argument), width));      \
    }
#define CUDA_HOST_SHUFFLES(T)                                      \
    CUDA_HOST_SHUFFLE(__shfl_sync, shuffle, T, int)                \
    CUDA_HOST_SHUFFLE(__shfl_up_sync, shuffle_up, T, unsigned)     \
    CUDA_HOST_SHUFFLE(__shfl_down_sync, shuffle_down, T, unsigned) \
    CUDA_HOST_SHUFFLE(__shfl_xor_sync, shuffle_xor, T, int)
CUDA_HOST_SHUFFLES(int)
CUDA_HOST_SHUFFLES(unsigned)
CUDA_HOST_SHUFFLES(long)
CUDA_HOST_SHUFFLES(unsigned long)
CUDA_HOST_SHUFFLES(long long)
CUDA_HOST_SHUFFLES(unsigned long long)
CUDA_HOST_SHUFFLES(float)
CUDA_HOST_SHUFFLES(double)

#define CUDA_HOST_MATCH(T)                                                                     \
    inline unsigned __match_any_sync(unsigned mask, T value, CUDA_HOST_SITE) {                 \
        return static_cast<unsigned>(                                                          \
            ::cuda_host::warp_op(::cuda_host::WarpOp::match_any, "__match_any_sync", mask,     \
                                 ::cuda_host::to_bits(value), sizeof(T), {file, line}));       \
    }                                                                                          \
    inline unsigned __match_all_sync(unsigned mask, T value, int* predicate, CUDA_HOST_SITE) { \
        unsigned result = static_cast<unsigned>(                                               \
            ::cuda_host::warp_op(::cuda_host::WarpOp::match_all, "__match_all_sync", mask,     \
                                 ::cuda_host::to_bits(value), sizeof(T), {file, line}));       \
        *predicate = result != 0;                                                              \
        return result;                                                                         \
    }
CUDA_HOST_MATCH(int)
CUDA_HOST_MATCH(unsigned)
CUDA_HOST_MATCH(long long)
CUDA_HOST_MATCH(unsigned long long)
CUDA_HOST_MATCH(float)
CUDA_HOST_MATCH(double)
#undef CUDA_HOST_MATCH
